"""Ctrl-C and SIGTERM as a wish: the run ends after the step under way, and only the second one stops it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Remembers the first signal that asks this process to stop; a context manager.

    Outside the main thread, where Python delivers no signals, nothing is caught.
    """

    def __init__(
        self, on_first: Callable[[], None] | None = None, *, numbers: Iterable[signal.Signals] = _SIGNALS
    ) -> None:
        """Prepares to listen for signals.

        `on_first`: called inside the signal handler when the first signal arrives, to tell the person.
        """
        self.received: signal.Signals | None = None
        self._on_first, self._numbers = on_first, tuple(numbers)
        self._owner = os.getpid()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                before = signal.getsignal(number)
                # A process started with nohup, or in the background by a script, is not to be stopped by this signal.
                if before is not signal.SIG_IGN:
                    self._before[number] = before
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def __bool__(self) -> bool:
        """Whether a signal has arrived."""
        return self.received is not None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Data loading processes inherit this handler and get Ctrl-C too; they live until their parent lets them go.
        if os.getpid() != self._owner:
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
        if self._on_first is not None:
            self._on_first()


@contextlib.contextmanager
def handed_over(take: Callable[[KeyboardInterrupt], object]) -> Iterator[None]:
    """Context in which a signal that stops at once gives `take` its `KeyboardInterrupt`, which is not raised.

    For calls of foreign code that an exception in the middle of it breaks.
    """
    before: dict[signal.Signals, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            before[signal.Signals(number)](number, frame)
        except KeyboardInterrupt as error:
            take(error)

    try:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if callable(signal.getsignal(number)):
                    before[number] = signal.getsignal(number)
                    signal.signal(number, handle)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
