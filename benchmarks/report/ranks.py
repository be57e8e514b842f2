"""Several GPUs: each process's bytes measured and predicted, and the guide's rungs."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.report.tables import table
from snugfit.units import format_bytes


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
    most = max(
        abs(guess - truth)
        for row in rows
        for guess, truth in zip(row["predicted_bytes"], row["measured_bytes"], strict=True)
    )
    text = (
        f"## Several GPUs\n\nProcesses on a CPU that share a batch over gloo, {len(rows)} configurations: the predicted "
        f"peak of every process is within {most} bytes of the measured one. `python -m benchmarks.ranks`, "
        f"torch {machine['torch']}, {machine['date']}."
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
    return "\n\n".join([text, lines, _guide(results)]).strip()


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
