"""Runs compared event by event."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report.tables import Row, named, table
from snugfit.units import format_bytes


def traces(rows: Sequence[Row], folder: str) -> str:
    """Returns the part of the page about runs compared event by event."""
    totals: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        for one in row["measured"]["operators"]:
            sums = totals.setdefault((one["operator"], one["kind"]), [0, 0])
            sums[0] += one["not_predicted_bytes"]
            sums[1] += one["not_happened_bytes"]
    ranked = sorted(totals.items(), key=lambda item: -sum(item[1]))[:15]
    runs = table(
        ["run", "blocks", "bytes taken", "predicted", "not predicted", "predicted only"],
        [
            (
                named(row, folder),
                str(found["blocks"]),
                format_bytes(found["block_bytes"]),
                f"{100 * found['matched_bytes'] / found['block_bytes']:.2f} %",
                format_bytes(found["not_predicted_bytes"]),
                format_bytes(found["not_happened_bytes"]),
            )
            for row in rows
            for found in (row["measured"],)
        ],
    )
    kinds = {"kept": "results", "inside": "inside"}
    operators = table(
        ["operator", "memory", "not predicted", "predicted only"],
        [
            (f"`{operator}`", kinds[kind], format_bytes(missed), format_bytes(phantom))
            for (operator, kind), (missed, phantom) in ranked
        ],
    )
    return (
        f"{runs}\n\nWhat differs most, over these runs together (`results` were still there when the operator ended, "
        f"`inside` was taken and given back within it):\n\n{operators}"
    )
