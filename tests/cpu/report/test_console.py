"""Tables on consoles."""

from __future__ import annotations

from snugfit.report.console import plain_for, row_of


def test_columns_line_up():
    widths = (6, 5, 0)
    rows = [["name", "n", "what"], ["a", "1", "short"], ["longer-name", "12345", "x"], ["b", "", ""]]
    assert [row_of(cells, widths, right=(1,)) for cells in rows] == [
        "name        n  what",
        "a           1  short",
        "longer-name  12345  x",
        "b",
    ]


def test_console_without_unicode_gets_plain_characters():
    assert plain_for("── é…", "ascii") == "-- ?..."
    assert plain_for("── é…", "utf-8") == "── é…"
    assert plain_for("── é…", None) == "── é…"
