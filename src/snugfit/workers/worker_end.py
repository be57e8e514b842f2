"""How a simulation's process ended, in words: what it last wrote, where Python was, and what to do about it.

The worker's standard error is read here and passed on as it comes; its last lines are kept. Where a signal ends the worker,
Python's own crash report (faulthandler) says which line was running; it goes to a file without a name that both have open.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import signal
import site
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, BinaryIO

_KEPT_LINES = 5
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (\S+)', re.MULTILINE)
"""A line of faulthandler's report, most recent call first."""


class LastWords:
    """What a worker leaves when it ends."""

    def __init__(self) -> None:
        """Opens the file for the crash report."""
        self._report: IO[bytes] | None = None
        with contextlib.suppress(OSError):  # no folder for it: a crash is then told without its place
            self._report = tempfile.TemporaryFile()  # noqa: SIM115 open as long as the worker
        self._lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._reader: threading.Thread | None = None

    @property
    def report_file(self) -> int | None:
        """The file's descriptor, which the worker inherits; None where there is none."""
        return self._report.fileno() if self._report is not None and sys.platform != "win32" else None

    def read(self, stream: BinaryIO) -> None:
        """Starts passing on what the worker writes to standard error."""
        self._reader = threading.Thread(target=self._pass_on, args=(stream,), daemon=True)
        self._reader.start()

    def _pass_on(self, stream: BinaryIO) -> None:
        with stream:
            for line in stream:
                self._lines.append(line.decode("utf-8", "replace").rstrip())
                with contextlib.suppress(OSError):
                    os.write(2, line)

    def forget(self) -> None:
        """Starts a new request: earlier output has nothing to do with it."""
        self._lines.clear()

    def close(self) -> None:
        """Waits until everything is passed on, except by children of the worker that live on."""
        if self._reader is not None:
            self._reader.join(timeout=2.0)
        if self._report is not None:
            self._report.close()

    def of(self, code: int, doing: str) -> str:
        """Returns a message on how a worker ended: where, its last lines, and what to do.

        `code`: its exit status; a negative one is the signal that ended it.
        """
        if self._reader is not None:
            self._reader.join(timeout=2.0)
        lines = [line for line in self._lines if line]
        said = "It wrote last:\n" + "\n".join(f"    {line}" for line in lines) + "\n" if lines else ""
        what = f"{doing} ended early: the simulation's own process"
        if code >= 0:
            return (
                f"{what} ended with status {code}. {said}Code that it ran ended it (os._exit, or a library that does so). "
                "Take that out of model, loss and forward."
            )
        name = _signal_name(-code)
        place = self._place()
        if -code == getattr(signal, "SIGKILL", None):
            todo = (
                "The system kills processes this way when host memory runs out: close other programs, or simulate a smaller "
                "batch or fewer microbatches."
            )
        else:
            todo = (
                "An operator or an extension crashed: try the step on the CPU without snugfit; if it works, report it."
            )
        return f"{what} was ended by signal {name}{place}. {said}{todo}"

    def _place(self) -> str:
        """The line that was running: the innermost that is neither Python's, a library's nor ours."""
        if self._report is None:
            return ""
        self._report.seek(0)
        frames = _FRAME.findall(self._report.read().decode("utf-8", "replace"))
        ours = (str(Path(__file__).resolve().parents[1]), *site.getsitepackages(), str(Path(os.__file__).parent))
        theirs = [frame for frame in frames if not frame[0].startswith((*ours, "<"))]
        file, line, function = (theirs or frames or [("", "", "")])[0]
        return f" at {file}:{line} in {function}" if file else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
