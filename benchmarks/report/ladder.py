"""The ladder of the guides, measured."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report.tables import Row, percent, table
from snugfit.units import format_bytes


def ladder(rows: Sequence[Row], folder: str) -> str:
    """Returns the part of the page about the guides' ladder."""
    key = "allocated_bytes" if folder.startswith("cpu-") else "reserved_bytes"
    return table(
        ["rung", "measured", "predicted", "error", "ms a sample", "published GB", "published minutes"],
        [
            (
                row["name"],
                format_bytes(row["measured"][key]),
                format_bytes(row["predicted"][key]),
                percent(row["predicted"][key] / row["measured"][key] - 1),
                f"{1e3 * row['measured']['sample_seconds']:.2f}",
                *(str(row["settings"].get(name, "")) for name in ("published_reserved_gb", "published_minutes")),
            )
            for row in rows
        ],
    ) + (
        "\n\nOn a CPU the model is a small one of the same structure, so the published numbers are only for the order."
        if folder.startswith("cpu-")
        else ""
    )
