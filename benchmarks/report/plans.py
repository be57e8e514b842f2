"""Plans, and other recipes that fit as well."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report.tables import Row, table


def plans(rows: Sequence[Row], folder: str) -> str:
    """Returns the part of the page about plans and other recipes."""
    return table(
        ["model and budget", "planned recipe", "plan, ms", "fastest other, ms", "plan over fastest", "others that fit",
         "rank correlation"],
        [
            (
                row["name"],
                f"`{found['plan']['recipe']}`",
                *(
                    "-" if seconds is None else f"{1e3 * seconds:.1f}"
                    for seconds in (
                        found["plan"]["seconds"],
                        min((one["seconds"] for one in found["others"] if one["seconds"] is not None), default=None),
                    )
                ),
                "-" if found["plan_over_fastest"] is None else f"{found['plan_over_fastest']:.3f}",
                str(found["others_that_fit"]),
                "-" if found["rank_correlation"] is None else f"{found['rank_correlation']:.2f}",
            )
            for row in rows
            for found in (row["measured"],)
        ],
    )  # fmt: skip
