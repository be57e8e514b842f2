"""A ladder on the terminal: which rung is trained, and a row for each that was."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from snugfit.cli import output
from snugfit.ladder import Rung
from snugfit.report.console import row_of
from snugfit.report.ladder_figure import peak_bytes
from snugfit.units import format_bytes, format_seconds

RUNG_NUMBERS = range(1, 6)
"""Columns of the table that hold numbers."""


class LadderProgress:
    """Says on stderr which rung is trained: one line rewritten on a terminal, else one line a rung."""

    def __init__(self, total: int) -> None:
        self._total, self._number, self._label = total, 0, ""
        self._live = sys.stderr.isatty()

    def begin(self, rung: Rung) -> None:
        """Names the next rung."""
        self._number += 1
        self._label = f"rung {self._number}/{self._total} {rung.name}"
        self.show("") if self._live else print(self._label, file=sys.stderr, flush=True)

    def show(self, line: str) -> None:
        """Passes a line of the rung's stderr on: messages always, progress only where it can be overwritten."""
        if line.startswith("snugfit:"):
            self.end()
            print(line, file=sys.stderr, flush=True)
        elif self._live:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write("\r\x1b[K" + f"{self._label}  {line}"[:width])
            sys.stderr.flush()

    def end(self) -> None:
        """Takes the line away."""
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def print_header(names: Sequence[str], *, predicted: bool) -> list[int]:
    """Prints the titles and a rule; returns the widths of the columns."""
    memory, time = ("predicted", "a step") if predicted else ("peak memory", "time")
    titles = ["rung", memory, "less", time, "samples/s", "test acc.", "fidelity", "what changes"]
    widths = [max(map(len, [*names, "rung"])), 11, 7, 10, 9, 9, 9, 12]
    output.print_text(row_of(titles, widths, RUNG_NUMBERS))
    output.print_text("  ".join("─" * width for width in widths))
    return widths


def rung_cells(entry: Mapping[str, Any], first: Mapping[str, Any]) -> list[str]:
    """Returns the row of a rung, beside the first one."""
    size, reference = peak_bytes(entry), peak_bytes(first)
    accuracy = (entry["metrics"] or {}).get("test_accuracy")
    seconds, rate = entry["seconds"], entry["samples_per_second"]
    return [
        entry["name"],
        "-" if size is None else format_bytes(size),
        "-" if size is None or reference is None else f"{reference / size:.1f}x",
        "-" if seconds is None else format_seconds(seconds),
        "-" if rate is None else f"{rate:.4g}",
        "-" if accuracy is None else f"{accuracy:.2%}",
        entry["fidelity"]["level"],
        entry["change"],
    ]
