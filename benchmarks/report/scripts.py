"""Scripts of other projects on a card."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report.tables import Row, percent, table
from snugfit.units import format_bytes


def scripts(rows: Sequence[Row], folder: str) -> str:
    """Returns the part of the page about scripts."""
    told = (
        "Bytes of tensors that `snugfit estimate SCRIPT` predicts, and those of the same steps for real under "
        "`snugfit profile`: watched, backward has no thread of its own, and cuBLAS one workspace less (left out here too "
        "where it is among the largest tensors)."
    )
    lines = []
    for row in rows:
        settings, predicted, measured = (
            row["settings"],
            row["predicted"]["watched_bytes"],
            row["measured"]["allocated_bytes"],
        )
        script = " ".join(filter(None, (settings["script"], settings["words"])))
        sizes = (format_bytes(predicted), format_bytes(measured))
        lines.append((f"{settings['repository']} `{script}`", *sizes, percent(predicted / measured - 1)))
    return f"{told}\n\n" + table(["script", "predicted", "measured", "apart"], lines)
