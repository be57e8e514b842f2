"""Tables of Markdown, and what all parts of the page say of a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.gpu.subjects import described

Row = dict[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table of Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)])


def percent(value: float) -> str:
    return f"{100 * value:+.2f} %"


def named(row: Row, folder: str) -> str:
    """A row's name, and what model it really is where that is a small one of the same structure."""
    what = described(row["settings"].get("model", ""), "cpu" if folder.startswith("cpu-") else "cuda")
    return f"`{row['name']}`" + (f" ({what})" if what else "")


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items() if one not in (None, {})}
    return float(f"{value:.4g}") if isinstance(value, float) else value
