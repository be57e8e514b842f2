"""One line for whoever waits for simulations: how many are done, since when, and which one runs now.

It stands on a terminal, or under a notebook's cell.
"""

from __future__ import annotations

import contextlib
import contextvars
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, TextIO

from snugfit.library_imports import importing
from snugfit.report.notebook import in_notebook
from snugfit.units import format_seconds

AFTER_SECONDS = 2.0
"""Seconds for which nothing is said."""
EACH_SECONDS = 0.5
"""Seconds between two looks at what runs."""

_line: WaitingLine | None = None
_told = contextvars.ContextVar("_told", default=False)


@contextlib.contextmanager
def waits_are_told() -> Iterator[None]:
    """Context in which long waits are told on stderr; nothing is said where that is neither terminal nor notebook."""
    global _line
    if _line is not None or not (sys.stderr.isatty() or in_notebook()):
        yield
        return
    _line = WaitingLine(sys.stderr)
    try:
        yield
    finally:
        _line.close()
        _line = None


def say(text: str) -> None:
    """Prints a line on stderr, above the one that tells what is waited for."""
    if _line is None:
        sys.stderr.write(f"{text}\n")
    else:
        _line.say(text)


@contextlib.contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Context of one simulation, in words; what is waited for within it is a part of it."""
    line = _line
    if line is None or _told.get():
        yield
        return
    token = _told.set(True)
    line.begins(what)
    try:
        yield
    finally:
        line.ends()
        _told.reset(token)


class WaitingLine:
    """The line; a thread writes it, so that it goes on while a single simulation is waited for."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._what, self._running, self._done = "", 0, 0
        self._since = time.monotonic()
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._bar: Any = None

    def begins(self, what: str) -> None:
        """One more is waited for."""
        with self._lock:
            self._what, self._running = what, self._running + 1
            if self._thread is None:
                self._since = time.monotonic()
                self._thread = threading.Thread(target=self._write, daemon=True)
                self._thread.start()

    def ends(self) -> None:
        """One of them is there."""
        with self._lock:
            self._running, self._done = self._running - 1, self._done + 1

    def say(self, text: str) -> None:
        """Prints a line above this one."""
        with self._lock:
            if self._bar is not None:
                self._bar.clear()
            print(text, file=self._stream)

    def close(self) -> None:
        """Takes the line away."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _write(self) -> None:
        while not self._closed.wait(EACH_SECONDS):
            with self._lock:
                passed = time.monotonic() - self._since
                if self._bar is None and self._running and passed >= AFTER_SECONDS:
                    with importing():  # without ipywidgets a notebook gets a line of text, and is told so at length
                        from tqdm.auto import tqdm

                    self._bar = tqdm(bar_format="{desc}", file=self._stream, leave=False, position=0)
                if self._bar is not None and self._running:
                    text = f"simulated {self._done} in {format_seconds(round(passed))}, now {self._what}"
                    columns = shutil.get_terminal_size().columns - 1
                    self._bar.set_description_str(text if len(text) <= columns else f"{text[: columns - 3]}...")
                elif self._bar is not None:
                    self._bar.close()  # the line is another's now, such as the bar of a training
                    self._bar = None
        if self._bar is not None:
            self._bar.close()
