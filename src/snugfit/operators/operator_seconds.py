"""How long a call takes on this processor: the best of a few runs; a long one tells by itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from snugfit.device_kinds import CPU, work_clock

_REPEATS = 3
_LOOP_SECONDS, _MOST_LOOPS = 0.001, 200
_LONG_SECONDS = 0.05
"""A call that takes longer is run no more: every new operator of an estimate for `cpu` waits for this."""
_LOADS = Path("/proc/loadavg")


def processors_are_short() -> bool:
    """Returns whether more threads want a processor now than there are; False where the system does not say."""
    try:
        running = int(_LOADS.read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return False
    return running > (os.cpu_count() or running)


def best_seconds(run: Callable[[], object]) -> float:
    """Returns the best of a few runs after one to warm up; short ones are looped until the clock can tell."""
    clock = work_clock(torch.device(CPU))
    run()
    begin = clock()
    run()
    taken = clock() - begin
    if taken > _LONG_SECONDS:
        return taken
    loops = max(1, min(_MOST_LOOPS, int(_LOOP_SECONDS / max(taken, 1e-7))))
    best = float("inf")
    for _ in range(_REPEATS):
        begin = clock()
        for _ in range(loops):
            run()
        best = min(best, (clock() - begin) / loops)
    return best
