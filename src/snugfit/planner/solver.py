"""HiGHS, which solves the planner's knapsacks, without a word on standard output."""

from __future__ import annotations

from typing import Any


def silent_solver() -> Any:
    """A new solver for one thread, silent from the start.

    From 1.16 on, HiGHS writes its name and licence to standard output, where `--json` belongs, as soon as callbacks are
    enabled. Its constructor does that, before anybody holds a solver that could be told to be silent.
    """
    import highspy

    class Silent(highspy.Highs):
        def enableCallbacks(self) -> None:  # the name is HiGHS's
            self.silent()
            super().enableCallbacks()  # type: ignore[no-untyped-call]

    solver = Silent()  # type: ignore[no-untyped-call]
    solver.setOptionValue("threads", 1)
    return solver
