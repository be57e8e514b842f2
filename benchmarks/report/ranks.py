"""Several GPUs: each process's bytes measured and predicted, and the guide's rungs."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.report.tables import table
from snugfit.units import format_bytes

WITHIN = 1e-4
"""What counts as near: some bytes of a small model."""


def ranks_section(results: Path) -> str:
    """Returns the part of the page about several GPUs; empty without results.

    Args:
        results: Folder of all results.
    """
    file = results / "ranks.json"
    if not file.exists():
        return ""
    found = json.loads(file.read_text(encoding="utf-8"))
    machine, rows = found["machine"], found["rows"]
    off = sorted(
        max(abs(guess / truth - 1) for guess, truth in zip(row["predicted_bytes"], row["measured_bytes"], strict=True))
        for row in rows
    )
    near = sum(one <= WITHIN for one in off)
    text = (
        f"## Several GPUs\n\nProcesses on a CPU that share a batch over gloo, {len(rows)} configurations. In {near} of them "
        f"the predicted peak of every process is within {WITHIN:.2%} of the measured one; the furthest of all is "
        f"{off[-1]:.1%} off. `python -m benchmarks.ranks`, torch {machine['torch']}, {machine['date']}."
    )
    lines = table(
        ["processes", "model", "recipe", "fullest, measured", "predicted"],
        [
            (
                str(row["ranks"]),
                row["model"],
                row["name"],
                format_bytes(max(row["measured_bytes"])),
                format_bytes(max(row["predicted_bytes"])),
            )
            for row in rows
        ],
    )
    parts = [text, lines, _guide(results), _published(results), _ddp(results)]
    return "\n\n".join(part for part in parts if part)


def _guide(results: Path) -> str:
    file = results / "guide_ranks.json"
    if not file.exists():
        return ""
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    text = (
        "The guide's ViT-H/14 on four GPUs (16-mixed, reserved GB), predicted for today's `fully_shard`. The guide used the "
        "first FSDP, which in June 2023 collected weights without a limit and made float16 copies of them: the last two "
        "columns are what is predicted when all collected weights stay, and with copies added. "
        "`python -m benchmarks.guide_ranks`."
    )
    return (
        text
        + "\n\n"
        + table(
            ["rung", "published", "predicted", "collected without a limit", "and copies"],
            [
                (
                    row["rung"],
                    f"{row['published_gb']:.2f}",
                    f"{row['predicted_gb']:.2f}",
                    *(f"{row[name]:.2f}" if name in row else "" for name in ("unlimited_gb", "with_copies_gb")),
                )
                for row in rows
            ],
        )
    )


def _published(results: Path) -> str:
    """Runs on several GPUs that others measured."""
    file = results / "published_ranks.json"
    if not file.exists():
        return ""
    found = json.loads(file.read_text(encoding="utf-8"))
    worst = max(found["rows"], key=lambda row: abs(row["off"]))
    text = (
        f"**Peaks on several GPUs that others published.** Of {found['rows_in_all']} rows {found['rows_predicted']} say "
        "enough to be predicted for a rank, written as their code had it (`benchmarks/published_ranks.py` says what that "
        f"is): median {found['median']:+.1%}, median absolute {found['median_absolute']:.1%}, "
        f"{found['within_10_percent']} of {found['rows_predicted']} within 10 %, furthest {worst['id']} "
        f"({worst['off']:+.1%}). Nothing is fitted to them. Rows of confidence C leave one thing unsaid (torchtitan's: that "
        "it is Llama 3 8B, one sample a GPU)."
    )
    lines = table(
        ["row", "GPUs", "confidence", "figure", "published GiB", "predicted GiB", "off"],
        [
            (
                row["id"],
                f"{row['gpus']}, {row['parallel']}",
                row["confidence"],
                row["what"],
                f"{row['published_gib']:.2f}",
                f"{row['predicted_gib']:.2f}",
                f"{row['off']:+.1%}",
            )
            for row in found["rows"]
        ],
    )
    left = table(
        ["rows not predicted", "of", "why"],
        [(str(row["rows"]), row["source"], row["reason"]) for row in found["not_predicted"]],
    )
    return "\n\n".join([text, lines, left])


def _ddp(results: Path) -> str:
    """Torch's own data parallelism, which snugfit does not run."""
    file = results / "ddp.json"
    if not file.exists():
        return ""
    found = json.loads(file.read_text(encoding="utf-8"))
    text = (
        f"**Plain DDP** ([how it is predicted](../several_gpus.md#your-own-ddp)) in {found['ranks']} processes on a CPU: "
        f"{found['within_2_percent']} of {len(found['rows'])} within 2 %. `python -m benchmarks.ddp`."
    )
    lines = table(
        ["model", "gradient_as_bucket_view", "measured", "predicted"],
        [
            (
                row["model"],
                str(row["gradient_as_bucket_view"]),
                format_bytes(max(row["measured_bytes"])),
                f"{format_bytes(row['predicted_bytes'])} ({row['predicted_bytes'] / max(row['measured_bytes']) - 1:+.2%})",
            )
            for row in found["rows"]
        ],
    )
    return "\n\n".join([text, lines])
