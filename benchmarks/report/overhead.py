"""What our step costs beside a loop by hand, and beside other trainers."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report.tables import Row, table
from snugfit.units import format_bytes


def overhead(rows: Sequence[Row], folder: str) -> str:
    """Returns the part of the page about the cost of our step."""
    hand = [row for row in rows if row["name"].startswith("by hand: ")]
    others = [row for row in rows if not row["name"].startswith("by hand: ")]
    parts = []
    if hand:
        parts.append(
            table(
                ["loop by hand", "by hand, ms", "ours, ms", "median ratio", "quartiles", "peak by hand", "our peak"],
                [
                    (
                        row["name"].removeprefix("by hand: "),
                        f"{1e3 * found['hand_step_seconds']:.2f}",
                        f"{1e3 * found['our_step_seconds']:.2f}",
                        f"{found['ratio_median']:.4f}",
                        " to ".join(f"{one:.3f}" for one in found["ratio_quartiles"]),
                        format_bytes(found["hand_peak_bytes"]),
                        format_bytes(found["our_peak_bytes"]),
                    )
                    for row in hand
                    for found in (row["measured"],)
                ],
            )
        )
    if others:
        parts.append(
            table(
                ["trainer", "their samples/s", "our samples/s", "their peak", "our peak"],
                [
                    (
                        row["name"],
                        f"{found['their_samples_per_second']:.1f}",
                        f"{found['our_samples_per_second']:.1f}",
                        format_bytes(found["their_peak_bytes"]),
                        format_bytes(found["our_peak_bytes"]),
                    )
                    for row in others
                    for found in (row["measured"],)
                ],
            )
        )
    return "\n\n".join(parts)
