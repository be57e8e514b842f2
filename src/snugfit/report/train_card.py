"""The result of a run as text: predicted beside measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from snugfit.recipe import Recipe
from snugfit.report.console import card
from snugfit.report.words import recipe_in_words
from snugfit.units import format_bytes, format_seconds


def train_card(summary: Mapping[str, Any]) -> str:
    """Returns the result of a run as text."""
    request = summary["workload"]
    title = f"{request['model']} on {request['data']}: {summary['steps']} steps of {request['settings']['batch_size']}"
    return card(title, _rows(summary))


def _rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "recipe", recipe_in_words(Recipe.from_mapping(summary["recipe"]))
    reasons = summary["fidelity"]["reasons"].items()
    lines = [f"{name} ({level}): {reason}" for name, (level, reason) in reasons]
    yield "fidelity", "\n".join([summary["fidelity"]["level"], *lines])
    predicted = summary["predicted"] or {}
    if "budget_bytes" in predicted:
        yield (
            "budget",
            f"{format_bytes(predicted['budget_bytes'])}, {format_bytes(predicted['margin_bytes'])} of it margin",
        )
    if summary.get("tuning"):
        yield "tried", "\n".join(recipes_tried(summary["tuning"]))
    over = _over_budget(summary)
    if over is not None:
        yield "over budget", over
    ranks = summary["measured"].get("ranks", ())
    for name, size in summary["measured"].items():
        if size is not None and name != "ranks":
            beside = f", predicted {format_bytes(predicted[name])}" if predicted.get(name) is not None else ""
            yield name.removesuffix("_bytes").replace("_", " "), f"{format_bytes(size)}{beside}"
    if ranks:
        yield "processes", _processes(ranks)
    if summary.get("rehearsal"):
        yield (
            "device",
            f"{summary['device']}: the bytes are the card's, the numbers too; how long it takes says nothing",
        )
    else:
        yield "time", f"{format_seconds(summary['seconds'])}, {summary['samples_per_second']:.4g} samples/s"
    if predicted.get("step_seconds") is not None and not summary.get("rehearsal"):
        step = summary["workload"]["settings"]["batch_size"] / summary["samples_per_second"]
        yield "step", f"{format_seconds(step)}, predicted {format_seconds(predicted['step_seconds'])}"
    loading = summary.get("loading") or {}
    if loading.get("advice"):
        yield "loading", loading["advice"]
    metrics = summary["metrics"]
    shown = summary["main_metric"]["name"]
    for name in (f"test_{shown}", f"validation_{shown}"):
        if metrics[name] is not None:
            yield name.replace("_", " "), f"{metrics[name]:.2%}" if shown == "accuracy" else f"{metrics[name]:.4g}"
    if summary.get("best"):
        yield "best", _best(summary["best"], stopped_early=summary["stopped_early"])
    if metrics["train_loss"] is not None:
        yield "train loss", f"{metrics['train_loss']:.4g}"
    skipped = summary.get("unreadable", {"files": 0})
    if skipped["files"]:
        yield "skipped", f"{skipped['files']} unreadable images, such as {skipped['first'][0]}"
    yield "files", summary["run_dir"]


def _best(best: Mapping[str, Any], *, stopped_early: bool) -> str:
    """The best evaluation, and what was done with it."""
    name = best["metric"].replace("_", " ")
    saved = "; its weights are saved" if best["saved"] else ""
    early = f"; stopped after {best['evaluations_since']} evaluations that were not better" if stopped_early else ""
    return f"{name} {best['value']:.4g} after step {best['step']}{saved}{early}"


def _processes(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Which of several processes took most memory, and which was slowest."""
    peak = next(name for name in ranks[0] if name.startswith("peak_") and ranks[0][name] is not None)
    sizes, seconds = [one[peak] for one in ranks], [one["busy_seconds"] for one in ranks]
    full, slow = sizes.index(max(sizes)), seconds.index(max(seconds))
    return (
        f"{len(ranks)}: number {full} is the fullest ({format_bytes(max(sizes))}; the least full "
        f"{format_bytes(min(sizes))}), number {slow} the slowest ({format_seconds(max(seconds))} of processor time; the "
        f"fastest {format_seconds(min(seconds))})"
    )


def recipes_tried(tuning: Mapping[str, Any]) -> list[str]:
    """Returns the recipes that the first steps of a run went by, in words; the kept one is marked."""
    lines = []
    for one in tuning["tried"]:
        measured = one["left_out"] or format_seconds(one["seconds"])
        words = recipe_in_words(Recipe.from_mapping(one["recipe"]))
        kept = ", kept" if one["kept"] else ""
        lines.append(f"{words}: {measured}, predicted {format_seconds(one['predicted_seconds'])}{kept}")
    return lines


def _over_budget(summary: Mapping[str, Any]) -> str | None:
    """What is said of a budget that was exceeded; None where it was kept, or there is none."""
    over = summary.get("over_budget_bytes")
    if not over:
        return None
    exceeded = summary["over_budget"]
    if not exceeded:
        return f"by {format_bytes(over)} (measured)"
    during = ", ".join(dict.fromkeys(one["during"] for one in exceeded))
    at_end = summary["peak_tensor_bytes_at_end"]
    changed = at_end is not None and any(one["next_recipe"] is not None for one in exceeded)
    then = f"; {format_bytes(at_end)} with the recipe above, taken after that" if changed else ""
    return f"by {format_bytes(over)} (measured), in {during}{then}"
