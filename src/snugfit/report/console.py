"""Cards and aligned tables for a console, readable in any encoding."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Sequence

WIDTH = 118
"""Characters of a line."""
_NARROWEST = 40
_PLAIN = {"─": "-", "…": "..."}
"""Character -> what stands for it where the console cannot show it."""


def row_of(cells: Sequence[str], widths: Sequence[int], right: Collection[int] = ()) -> str:
    """Returns one row of a table that is printed row by row, so that a person can follow a long run.

    `widths`: characters reserved; a longer cell pushes the rest of its row to the right and is never cut.
    """
    return "  ".join(_justified(cells, widths, right)).rstrip()


def card(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Returns a title and `name  value` lines; those with an empty value are left out."""
    return "\n".join([title, *table([row for row in rows if row[1]])])


def table(
    rows: Iterable[Sequence[str]], right: Collection[int] = (), *, indent: str = "  ", wrap_at: int = WIDTH
) -> list[str]:
    """Returns the lines of a table; `right` are indices of columns of numbers, aligned right.

    `rows`: cells from left to right, as many in each row; the first row may be titles. What is long in a last cell is
    wrapped, and lines of their own stay.
    `wrap_at`: characters of a line, from which on it is wrapped.
    """
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        *cells, last = _justified(row, widths, right)
        start = indent + "".join(f"{cell}  " for cell in cells)
        for part in last.splitlines() or [""]:
            lines += textwrap.wrap(
                part.rstrip(),
                max(wrap_at, len(start) + _NARROWEST),
                initial_indent=start,
                subsequent_indent=" " * len(start),
                break_long_words=False,
                break_on_hyphens=False,
            ) or [start.rstrip()]
            start = " " * len(start)
    return lines


def _justified(cells: Sequence[str], widths: Sequence[int], right: Collection[int]) -> list[str]:
    sides = enumerate(zip(cells, widths, strict=True))
    return [cell.rjust(width) if at in right else cell.ljust(width) for at, (cell, width) in sides]


def plain_for(text: str, encoding: str | None) -> str:
    """Returns a text with plain characters for those that an encoding lacks."""
    if encoding is None:
        return text
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        for fancy, plain in _PLAIN.items():
            text = text.replace(fancy, plain)
        return text.encode("ascii", "replace").decode("ascii")
    return text
