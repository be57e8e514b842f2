"""A plan as text for a console: recipe, prediction, what is on and off and why, the frontier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from snugfit.recipe import Recipe
from snugfit.report.console import card, table
from snugfit.report.estimate_card import context_in_words
from snugfit.report.words import recipe_in_words
from snugfit.techniques import TECHNIQUES
from snugfit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from snugfit.planner.plan_result import Plan

_QUIET = {field for row in TECHNIQUES for field in row.fields[0 if row.planning.quiet else 1 :]}
"""Fields that the card only names when they are on; the JSON has all."""
_OF_SEVERAL = {
    row.fields[0] for row in TECHNIQUES if row.planning.strategies is not None or row.planning.part == "build"
}
"""Those of them that it names in any case where several GPUs train."""


def plan_card(plan: Plan) -> str:
    """Returns the whole card."""
    title = f"{plan.estimate.title} on {plan.estimate.device} within {format_bytes(plan.budget_bytes)}"
    frontier = [
        (
            "*" if point.recipe == plan.recipe else " ",
            format_bytes(point.total_bytes),
            format_seconds(point.step_seconds),
            recipe_in_words(point.recipe),
        )
        for point in plan.frontier
    ]
    about_frontier = "Memory against time, of the recipes that were simulated (* this plan)"
    about_gpus = "How many GPUs (the plan is for the fewest on which one was found)"
    parts = [
        [card(title, _facts(plan))],
        [about_gpus, *table(_gpus_tried(plan), right=(0, 1, 3))] if plan.gpus_tried else [],
        ["Why", *table(shown_reasons(plan.reasons, plan.recipe, several=bool(plan.estimate.ranks)))],
        [about_frontier, *table(frontier, right=(1, 2))] if frontier else [],
        ["Beside snugfit", *table(("-", str(way)) for way in plan.elsewhere)] if plan.elsewhere else [],
        ["With another budget", *table(("-", f"{text}.") for text in plan.neighbours)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    estimate = plan.estimate
    yield "batch", estimate.batch_shape
    for name, size in plan.maximized.items():
        yield "largest", f"{name} {size}"
    yield "GPUs", _gpus_in_words(plan)
    yield "recipe", recipe_in_words(plan.recipe)
    yield "fidelity", str(plan.fidelity)
    yield "memory", memory_in_words(estimate.total_bytes, plan.budget_bytes, estimate.devices[0].headroom_bytes)
    processor = getattr(estimate, "processor", None)  # what a prediction for cpu holds for
    yield "holds for", f"{processor}" if processor else ""
    yield "margin", f"{format_bytes(plan.margin_bytes)} stay free ({plan.margin_source})"
    if estimate.peak_reserved_bytes is not None:
        yield (
            "CUDA context",
            f"{format_bytes(estimate.context_bytes)}, taken off the budget ({context_in_words(estimate)})"
            if estimate.context_bytes
            else "",
        )
    if estimate.ranks and estimate.peak_reserved_bytes is not None:
        nccl = estimate.nccl_bytes
        yield "NCCL", "unknown on such cards" if nccl is None else f"{format_bytes(nccl)}, taken off the budget"
    yield "host memory", _host_in_words(plan) if estimate.host_bytes else ""
    slower = (
        "the fastest there is" if plan.slowdown < 1.0005 else f"{plan.slowdown:.3g} times the fastest without a budget"
    )
    yield "time", f"{format_seconds(plan.step_seconds)} a step, {slower}"
    yield "simulated", f"{plan.simulated} recipes"


def memory_in_words(total_bytes: int, budget_bytes: int, headroom_bytes: int | None) -> str:
    """What a plan takes, which may be more than its budget where nothing makes the allocator give cached blocks back."""
    total = format_bytes(total_bytes)
    if headroom_bytes is None:
        return f"{total} where memory is not short"
    left = f"{format_bytes(headroom_bytes)} of the budget are left"
    if total_bytes <= budget_bytes:
        return f"{total}; {left}"
    return f"fits {format_bytes(budget_bytes)}, where cached blocks are given back, and {left}; {total} with more room"


def _host_in_words(plan: Plan) -> str:
    needed, several = format_bytes(plan.estimate.host_bytes), bool(plan.estimate.ranks)
    if plan.host_budget_bytes is None:
        return f"{needed} in {'each' if several else 'its'} machine (--host-budget limits it)"
    together = " in each machine, all its processes together" if several else ""
    return f"{needed} of {format_bytes(plan.host_budget_bytes)}{together}"


def _gpus_in_words(plan: Plan) -> str:
    """How many there are; empty for one."""
    estimate = plan.estimate
    if not estimate.ranks:
        return ""
    machines = f" in each of {estimate.nodes} machines" if estimate.nodes > 1 else ""
    return f"{estimate.gpus}{machines}, a process each; budget and bytes are those of one"


def _gpus_tried(plan: Plan) -> Iterator[tuple[str, ...]]:
    yield "GPUs", "machines", "", "a step", "recipe"
    for one in plan.gpus_tried:
        time = "-" if one.step_seconds is None else format_seconds(one.step_seconds)
        recipe = "-" if one.recipe is None else recipe_in_words(one.recipe)
        yield str(one.gpus * one.nodes), str(one.nodes), "fits" if one.fits else "does not fit", time, recipe


def shown_reasons(reasons: Mapping[str, str], recipe: Recipe, *, several: bool) -> Iterator[tuple[str, str]]:
    """Yields the fields that people are told of, with why they are on or off; `several`: GPUs."""
    plain = Recipe()
    for name, text in reasons.items():
        said = several and name in _OF_SEVERAL
        if said or name not in _QUIET or getattr(recipe, name) != getattr(plain, name):
            yield name, text
