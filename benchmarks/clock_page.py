"""The part of docs/accuracy.md that holds the clock against published step times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HEAD = (
    "| of | rows | median | p10 | p90 | within 25 % | within 1.6 | rank correlation |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


def clock_section(results: Path) -> str:
    """Returns the section; empty where `published_times` was never run.

    Args:
        results: Folder of all results.
    """
    path = results / "published_times.json"
    if not path.exists():
        return ""
    found = json.loads(path.read_text(encoding="utf-8"))
    timm = {name: found[name] for name in ("all", "channels first", "channels last")} | found["families"]
    parts = [
        "## The clock against published step times\n\nPredicted over measured time of whole training steps that others "
        "measured (`python -m benchmarks.published_times`); no constant was fitted to them. timm's own results on an RTX "
        f"3090, {found['all']['rows']} runs, by layout and by family:",
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
