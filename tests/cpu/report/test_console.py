"""Tables on consoles."""

from __future__ import annotations

from snugfit.report.console import plain_for, row_of
from snugfit.report.words import answers_in_words


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


def test_the_same_answer_of_several_lines_is_said_once():
    read = "assumed loss_finite: a number read at {} counts as 1.0"
    answered = [read.format("/venv/transformers/trainer.py:7"), "no row is packed", read.format("train.py:3")]
    assert answers_in_words(answered) == f"{read.format('transformers/trainer.py:7, train.py:3')}; no row is packed"
    assert answers_in_words([]) == ""
