"""Progress for people, on stderr only: a bar with time left on a terminal or in a notebook, single lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from snugfit.library_imports import importing
from snugfit.report.notebook import in_notebook
from snugfit.units import format_bytes, format_seconds

LINE_SECONDS = 30.0
"""Seconds between lines where there is no terminal."""

Memory = tuple[int, int]
"""Bytes in use now and at most."""


class Progress:
    """Shows how far a run is: a bar on a terminal or in a notebook, lines elsewhere."""

    def __init__(
        self,
        *,
        total_steps: int,
        steps_done: int = 0,
        memory: Callable[[], Memory | None] = lambda: None,
        stream: TextIO | None = None,
        line_seconds: float = LINE_SECONDS,
    ) -> None:
        """Starts to show; `steps_done` are those of earlier processes, `stream` None is stderr.

        `memory`: returns (bytes in use, most bytes so far), or None where unknown.
        `line_seconds`: seconds between lines where the stream is no terminal.
        """
        self._stream = stream if stream is not None else sys.stderr
        self._total, self._first, self._done = total_steps, steps_done, steps_done
        self._memory = memory
        self._started = self._shown = time.monotonic()
        self._line_seconds = line_seconds
        self._bar: Any = None
        if self._stream.isatty() or in_notebook():
            with importing():  # without ipywidgets a notebook gets a bar of text, and is told so at length
                from tqdm.auto import tqdm

            self._bar = tqdm(
                total=total_steps, initial=steps_done, unit="step", file=self._stream, dynamic_ncols=True, leave=False
            )

    def advance(self) -> None:
        """One more update is done."""
        self._done += 1
        if self._bar is not None:
            self._bar.update()

    def show(self, loss: float, samples_per_second: float) -> None:
        """Shows new numbers: at once in the bar, as a line only when the last one is long ago."""
        parts = [f"loss {loss:.4g}", f"{samples_per_second:.3g} samples/s"]
        memory = self._memory()
        if memory is not None:
            parts.append(f"memory {format_bytes(memory[0])} (peak {format_bytes(memory[1])})")
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(parts))
            return
        now = time.monotonic()
        if now - self._shown >= self._line_seconds:
            self._shown = now
            steps = max(1, self._done - self._first)
            left = (now - self._started) / steps * (self._total - self._done)
            self.say(f"step {self._done}/{self._total}: {', '.join(parts)}, {format_seconds(left)} left")

    def say(self, text: str) -> None:
        """Prints a line, above the bar where there is one."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.close()
