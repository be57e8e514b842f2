"""Faults that were made on purpose, and what became of them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from benchmarks.report.tables import Row, rounded, table


def faults(rows: Sequence[Row], folder: str) -> str:
    """Returns the part of the page about faults."""
    return table(
        ["fault", "", "numbers"],
        [
            (
                row["name"],
                "passed" if row["measured"]["passed"] else "**not passed**",
                f"`{json.dumps({k: v for k, v in rounded(row['measured']).items() if k not in ('passed', 'message')})}`",
            )
            for row in rows
        ],
    )
