"""The part of docs/accuracy.md that holds the clock against published step times, and its figure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FIGURE = "clock.png"
WITHIN = 1.25
"""The band that is drawn: predictions within 25 %."""
HEAD = (
    "| of | rows | median | p10 | p90 | within 25 % | within 1.6 | rank correlation |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


def clock_section(results: Path, figures: Path) -> str:
    """Returns the section; empty where `published_times` was never run.

    Args:
        results: Folder of all results.
        figures: Where the figure is drawn.
    """
    path = results / "published_times.json"
    if not path.exists():
        return ""
    found = json.loads(path.read_text(encoding="utf-8"))
    figure(points_of(found), figures / FIGURE)
    timm = {name: found[name] for name in ("all", "channels first", "channels last")} | found["families"]
    parts = [
        "## The clock against published step times\n\nPredicted over measured time of whole training steps that others "
        "measured (`python -m benchmarks.published_times`); no constant was fitted to them. Green: within 25 %.",
        f"![predicted over measured step times, by card](figures/{FIGURE})",
        f"timm's own results on an RTX 3090, {found['all']['rows']} runs, by layout and by family:",
        HEAD + "\n".join(_line(name, row) for name, row in timm.items()),
        "Furthest off, with the classes of kernels that most of the predicted time is in:",
        "| model | batch | layout | predicted over measured | most time in |\n|---|---|---|---|---|\n"
        + "\n".join(
            f"| {row['model']} | {row['batch']} | channels {'last' if row['channels_last'] else 'first'} "
            f"| {row['predicted_over_measured']} | {'; '.join(row['most_time_in'])} |"
            for row in found["worst"]
        ),
        "Lambda's logs of ResNet-50 and BERT for SQuAD on one card, each row the median of equal runs with one torch:",
        HEAD + "\n".join(_line(name, row) for name, row in found["lambda"]["cards"].items()),
        *_more(found.get("more", {})),
    ]
    if found["not_told"]:
        reasons = {row["why"]: 0 for row in found["not_told"]}
        for row in found["not_told"]:
            reasons[row["why"]] += 1
        parts.append("Left out: " + "; ".join(f"{count} runs {why}" for why, count in reasons.items()) + ".")
    return "\n\n".join(parts)


def points_of(found: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Card -> measured and predicted milliseconds of each of its rows, the card with most rows first."""
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for card, rows in ((found["card"], found["rows"]), (None, found["lambda"]["rows"])):
        for row in rows:
            points[card or row["card"]].append((row["step_ms"], row["predicted_ms"]))
    return dict(sorted(points.items(), key=lambda item: -len(item[1])))


def figure(points: Mapping[str, Sequence[tuple[float, float]]], path: Path) -> None:
    """Draws predicted over measured milliseconds, a field for each card.

    Args:
        points: Card -> measured and predicted milliseconds of each row.
        path: The PNG.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    columns = min(3, len(points))
    lines = -(-len(points) // columns)
    chart, fields = pyplot.subplots(
        lines, columns, figsize=(2.7 * columns, 2.6 * lines + 0.2), dpi=110, sharex=True, sharey=True, squeeze=False
    )
    every = [one for rows in points.values() for pair in rows for one in pair]
    ends = (0.8 * min(every), 1.25 * max(every))
    for field, (card, rows) in zip(fields.flat, points.items(), strict=False):
        within = sum(1 / WITHIN <= predicted / measured <= WITHIN for measured, predicted in rows)
        field.fill_between(
            ends, [one / WITHIN for one in ends], [one * WITHIN for one in ends], color="#2ca02c", alpha=0.15
        )
        field.plot(ends, ends, color="#888888", linewidth=0.8)
        field.scatter(*zip(*rows, strict=True), s=7, c="#1f77b4", alpha=0.6, linewidths=0)
        field.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
        field.set_title(f"{card}: {within} of {len(rows)} within 25 %", fontsize=8)
        for axis in (field.xaxis, field.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        field.tick_params(labelsize=7)
    for field in fields.flat[len(points) :]:
        field.set_visible(False)
    chart.supxlabel("measured, ms a step", fontsize=8)
    chart.supylabel("predicted, ms a step", fontsize=8)
    chart.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    chart.savefig(path, metadata={"Software": None})
    pyplot.close(chart)


MORE = {
    "inference": "timm's inference, every 50th row by name of those with the newest torch, by card and by family:",
    "torchvision": "torchvision's models at batch 12, forward and backward with the batch's copy, on an A100 (torch 1.7):",
    "language": "Language models of Hugging Face in float32, forward or forward and backward (NeuSight's measurements):",
}


def _more(found: Mapping[str, Any]) -> list[str]:
    """The parts about other rows: by card, by family and the ten furthest off."""
    parts = []
    for name, text in MORE.items():
        rows = found.get(name, {"rows": []})
        if not rows["rows"]:
            continue
        parts += [text, HEAD + "\n".join(_line(*item) for item in (*rows["cards"].items(), *rows["families"].items()))]
        parts += [
            "| furthest off | card | batch | predicted over measured | bound | most time in |\n|---|---|---|---|---|---|\n"
            + "\n".join(
                f"| {row['model']} | {row['card']} | {row['batch']} | {row['predicted_over_measured']} | {row['bound']} "
                f"| {'; '.join(row['most_time_in'])} |"
                for row in rows["worst"]
            )
        ]
    return parts


def _line(name: str, row: Mapping[str, Any]) -> str:
    values = (row["rows"], row["median"], row["p10"], row["p90"], f"{row['within_25_percent']:.0%}",
              f"{row['within_factor_1.6']:.0%}", row["rank_correlation_per_image"])  # fmt: skip
    return f"| {name} | {' | '.join(map(str, values))} |"
