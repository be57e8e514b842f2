"""Tables on consoles."""

from __future__ import annotations

import io

from snugfit.report.console import Column, Table, plain_for


def test_columns_line_up():
    stream = io.StringIO()
    table = Table([Column("name", 6), Column("n", 5, right=True), Column("what", 0)], stream)
    table.print_header()
    table.print_row(["a", "1", "short"])
    table.print_row(["longer-name", "12345", "x"])
    table.print_row(["b"])
    assert stream.getvalue().splitlines() == [
        "name        n  what",
        "──────  ─────  ────",
        "a           1  short",
        "longer-name  12345  x",
        "b",
    ]


def test_console_without_unicode_gets_plain_characters():
    assert plain_for("── é…", "ascii") == "-- ?..."
    assert plain_for("── é…", "utf-8") == "── é…"
    assert plain_for("── é…", None) == "── é…"
