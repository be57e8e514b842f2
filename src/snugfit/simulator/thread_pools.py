"""Pools of processes as pools of threads: in scripts they prepare data, and threads do that as well.

`datasets` asks the pools of the library `multiprocess` for queues between processes too, and whether all are alive.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import multiprocessing.context
import queue
from multiprocessing.pool import ThreadPool
from typing import Any

from snugfit.attributes import Change

_TAKES = ("processes", "initializer", "initargs")
"""What a pool of threads takes."""


class _Manager(contextlib.AbstractContextManager["_Manager"]):
    """What stands between threads: nothing."""

    Queue = queue.Queue

    def __exit__(self, *_: Any) -> None:
        pass


class _Between:
    Manager = _Manager


class _Threads(ThreadPool):
    """A pool of threads that answers as one of processes."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given[:3], **{name: named[name] for name in _TAKES if name in named})
        self._ctx = _Between()
        for number, worker in enumerate(self._pool):  # type: ignore[attr-defined]
            worker.pid = number


def thread_pools() -> list[Change]:
    """Returns the replacements of what makes pools."""
    changes: list[Change] = [
        (multiprocessing, "Pool", _Threads),
        (multiprocessing.context.BaseContext, "Pool", lambda _, *given, **named: _Threads(*given, **named)),
    ]
    if importlib.util.find_spec("multiprocess") is not None:
        import multiprocess.pool

        changes.append((multiprocess.pool, "Pool", _Threads))  # which all of its ways to one ask for
    return changes
