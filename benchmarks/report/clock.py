"""Predicted and measured time."""

from __future__ import annotations

import json
from collections.abc import Sequence

from benchmarks.report.tables import Row, percent, rounded, table


def clock(rows: Sequence[Row], folder: str) -> str:
    """Returns the part of the page about time."""
    steps = [row for row in rows if row["name"].startswith("step: ")]
    constants = [row for row in rows if not row["name"].startswith("step: ")]

    def pair(found: Row, key: str) -> tuple[str, str]:
        measured, predicted = found[key], found[f"predicted_{key}"]
        shown = f"{1e3 * measured:.2f}"
        return shown, "-" if predicted is None or measured <= 0 else percent(predicted / measured - 1)

    lines = [
        (
            f"`{row['name'].removeprefix('step: ')}`",
            *pair(row["measured"], "step_seconds"),
            *pair(row["measured"], "checkpointed_step_seconds"),
            *pair(row["measured"], "block_seconds"),
        )
        for row in steps
    ]
    head = [
        "step",
        "ms",
        "predicted",
        "all blocks checkpointed, ms",
        "predicted",
        "one block recomputed, ms",
        "predicted",
    ]
    parts = [table(head, lines)] if lines else []
    if any(len(row["measured"].get("passes", ())) > 1 for row in steps):
        parts.append(
            f"Medians of passes that calibrate, predict and measure anew. {_worst(steps)} One of four measured steps is "
            "faster than what counts as measured: a shared processor is slower for moments that no prediction knows."
        )
    if constants:
        parts.append(
            table(
                ["constant", "measured and counted on"],
                [
                    (row["name"].removeprefix("constant: "), f"`{json.dumps(rounded(row['measured']))}`")
                    for row in constants
                ],
            )
        )
    return "\n\n".join(parts)


def _worst(steps: Sequence[Row]) -> str:
    """How far single passes are off at worst."""
    ratios = [
        one[f"predicted_{name}_seconds"] / one[f"{name}_seconds"] - 1
        for row in steps
        for one in row["measured"].get("passes", ())
        for name in ("step", "checkpointed_step")
        if one[f"predicted_{name}_seconds"] is not None
    ]
    return f"Single passes are off by {percent(min(ratios))} to {percent(max(ratios))}." if ratios else ""
