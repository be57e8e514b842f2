"""What a notebook that was saved as a script asks of IPython: timed code is run, words to a shell or a page are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_RUN = ("time", "timeit", "capture", "prun")
"""Magics whose line or cell is code of the notebook."""


class Shell:
    """Stands for IPython in a script, as `get_ipython()` gives it."""

    def __init__(self, run: Callable[[str], None]) -> None:
        """`run`: runs code in the script's main module."""
        self._run = run

    def run_line_magic(self, name: str, line: str, *_: Any, **__: Any) -> None:
        """`%name line`."""
        if name in _RUN and name != "capture":
            self._run(line)

    def run_cell_magic(self, name: str, _: str, cell: str) -> None:
        """`%%name`, and the cell behind it."""
        if name in _RUN:
            self._run(cell)

    def getoutput(self, *_: Any, **__: Any) -> list[str]:
        """`lines = !command`."""
        return []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_, **__: None  # `!command`, older spellings of magics, settings
