"""Workers for scripts: each run has a process of its own, since scripts change the one they run in.

On Linux that is a copy of a worker, which has imported what any script needs. A pool that runs one script again and again
imports its libraries too, once for all copies: transformers' Trainer takes four seconds of a processor to import, a step of
a small model one. Whether the script does the same with them is for the caller to look at.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from typing import Any

from snugfit.workers.forked import FORKS, forked
from snugfit.workers.pool import Pool

Libraries = tuple[Sequence[str], Callable[[Sequence[str]], None]]
"""Names of modules, and what imports modules in a worker."""


class FreshWorkers(Pool):
    """A pool that runs every request in a process of its own."""

    libraries: Libraries | None = None
    """What workers import before they are copied; only in a pool of one script."""

    def call(self, *request: Any, **settings: Any) -> Any:
        """Runs a function in a copy of a worker, or in a new one; as `Pool.call`."""
        if FORKS:
            return super().call(_in_copy, self.libraries, *request, **settings)
        with closing(Pool()) as pool:
            return pool.call(*request, **settings)


@functools.cache
def fresh_workers() -> FreshWorkers:
    """Returns the pool of this process for scripts, with two workers."""
    return FreshWorkers(2)


def _in_copy(libraries: Libraries | None, *request: Any, **settings: Any) -> Any:
    import snugfit.recorder.script_recorder
    import snugfit.simulator.session  # noqa: F401

    if libraries is not None:
        names, import_all = libraries
        if missing := [name for name in names if name not in sys.modules]:
            import_all(missing)
    return forked(*request, **settings)


def imported_since(before: Collection[str]) -> tuple[str, ...]:
    """Returns the modules of installed libraries that were imported since `before`, in that order."""
    folders = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})
    new = (
        (name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items()) if name not in before
    )
    return tuple(name for name, file in new if file and file.startswith(folders))
