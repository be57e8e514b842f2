"""Plans, what the run by each of them keeps, and other recipes that fit as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.report.tables import Row, table


def plans(rows: Sequence[Row], folder: str) -> str:
    """Returns the part of the page about plans and other recipes."""
    return table(
        ["model and budget", "planned recipe", "kept by the run", "found in steps", "kept, ms", "fastest other, ms",
         "plan over fastest", "kept over fastest", "others that fit", "rank correlation"],
        [
            (
                row["name"],
                f"`{found['plan']['recipe']}`",
                "the plan's" if kept == found["plan"] else f"`{kept['recipe']}`",
                str(found.get("tuning_steps", "-")),
                _milliseconds(kept["seconds"]),
                _milliseconds(min((one["seconds"] for one in found["others"] if one["seconds"] is not None), default=None)),
                _ratio(found["plan_over_fastest"]),
                _ratio(found.get("tuned_over_fastest")),
                str(found["others_that_fit"]),
                "-" if found["rank_correlation"] is None else f"{found['rank_correlation']:.2f}",
            )
            for row in rows
            for found in (row["measured"],)
            for kept in (found.get("tuned", found["plan"]),)  # rows of before runs timed recipes have none
        ],
    )  # fmt: skip


def _milliseconds(seconds: Any) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.1f}"


def _ratio(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}"
