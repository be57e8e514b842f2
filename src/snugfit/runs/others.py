"""The other processes of a run when something goes wrong: which of them still live, and who of them tells the person."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from datetime import timedelta
from typing import Any

from snugfit.errors import InputError, OutOfMemoryError, SnugfitError, TrainingStopped, option
from snugfit.runs.standing import Rank, by_elastic

LOST_EXIT = 76
"""Exit code of a process that lost the others; `launching.py` says why. EX_PROTOCOL of sysexits."""
WATCH = timedelta(seconds=6)
"""Time limit for asking whether the others live: live ones that are busy let it pass, a dead one fails at once."""
_SAID = "snugfit/said"
"""How many processes have asked whether they are to tell of an error."""
_HOLD_SECONDS = 3.0
"""Seconds that the process with the store waits for the others to ask; one that is stuck never does."""


class Others:
    """What a process knows of the others, which it has met."""

    def __init__(self, rank: Rank, store: Any) -> None:
        """Takes the store where all meet; made by `joining.joined`."""
        self.rank, self.store = rank, store
        self.watch: Any = None
        """A group that only `lost` uses."""
        self._told = False
        self._asked = False

    def wait_for_all(self, seconds: float) -> None:
        """Waits at most this many seconds for the others; `InputError` where some did not come."""
        names = [f"snugfit/here/{number}" for number in range(self.rank.count)]
        self.store.set(names[self.rank.number], "1")
        try:
            self.store.wait(names, timedelta(seconds=seconds))
        except RuntimeError as error:
            try:
                missing = [str(number) for number, name in enumerate(names) if not self.store.check([name])]
            except RuntimeError:  # the first process holds the store; it has given up waiting, and said so
                self._told = True
                raise InputError("process 0 ended before all processes had come; it says why.") from error
            raise InputError(
                f"of {self.rank.count} processes, number {', '.join(missing)} did not come within {seconds:g} s "
                f"({option('rdzv_timeout SECONDS')}). Start the same command on every machine, and as many processes as "
                "were announced."
            ) from error

    def speaks(self) -> bool:
        """Returns whether this process tells the person of an error: the first that asks does."""
        if self._told:
            return False
        self._asked = True
        try:
            return bool(self.store.add(_SAID, 1) == 1)
        except RuntimeError:  # the one that held the store is gone
            return self.rank.number == 1

    def let_others_ask(self) -> None:
        """Waits until the others have asked who tells of an error, which ends most runs in all processes at once.

        The store ends with the first process, and a process that finds none would tell of the error once more.
        """
        if self.rank.number > 0 or not self._asked or by_elastic():
            return
        until = time.monotonic() + _HOLD_SECONDS
        while self.store.add(_SAID, 0) < self.rank.count and time.monotonic() < until:
            time.sleep(0.01)

    def lost(self) -> bool:
        """Returns whether another process has died, once something has failed here."""
        if self.watch is None:
            return False
        import torch
        import torch.distributed as dist

        started = time.monotonic()
        try:
            dist.all_reduce(torch.zeros(()), group=self.watch)
        except RuntimeError:
            return time.monotonic() - started < WATCH.total_seconds() / 2
        return False


current: Others | None = None
"""The others, while a run with several processes is open."""


def end_at_once(code: int) -> None:
    """Ends this process at once if it has left the others without a word; returns otherwise.

    A thread of gloo that frees a tensor while Python shuts down is a process ended by SIGABRT, and the launcher would
    name it as the one that failed first.
    """
    if current is None:
        return
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody is left to read it
            stream.flush()
    current.let_others_ask()
    os._exit(code)


def ended_by(error: BaseException) -> int | None:
    """Returns the exit code where another process tells of the error; None where this one is to tell."""
    if current is None:
        return None
    if isinstance(error, SnugfitError):
        if getattr(error, "left_to_others", False):
            return error.exit_code if isinstance(error, OutOfMemoryError) else LOST_EXIT
        return None if current.speaks() else error.exit_code
    if isinstance(error, TrainingStopped):
        return None if current.rank.number == 0 else 128 + error.signal
    if isinstance(error, RuntimeError) and current.lost():
        return LOST_EXIT
    return None if current.speaks() else 1
