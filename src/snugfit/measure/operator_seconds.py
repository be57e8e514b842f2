"""How long an operator takes in a training step: it is timed behind other operators, as a step runs it.

Run again and again by itself, an operator finds its code, its arguments and the memory of its results in the processor's
fastest caches. In a step it does not: dozens of others came between, each with code and tensors of its own, and a small
operator takes up to twice as long. So a few others run before every run that counts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from snugfit.measure.full_speed import FullSpeed, few_operators
from snugfit.measure.processor import busy_clock

_STEADY, _TIMED_SECONDS = 8, 0.1
"""Runs in a row that are no faster than those before them end the timing; and when no further one is begun."""
_FASTER = 0.9
"""What share of the best time a run must take to count as faster."""


def seconds_in_a_step(run: Callable[[], object], full_speed: FullSpeed | None = None) -> float:
    """Returns how long an operator takes behind others: the median of as many runs as it takes to become steady.

    The first runs walk through memory that was never touched (a product of 4 microseconds took 60), and oneDNN's first ones
    take up to ten times as long as later ones, which are what a training step has.

    Args:
        run: Runs it.
        full_speed: Waits for the machine's full speed before each run; None: it is timed at the speed of the moment.
    """
    clock, best, spent, steady = busy_clock(), math.inf, 0.0, 0
    asking = min(-clock() + clock() for _ in range(_STEADY))
    recent: deque[float] = deque(maxlen=_STEADY)
    while steady < _STEADY and spent < _TIMED_SECONDS:
        few_operators()  # also before a wait: behind an operator with large tensors the first ones are slow at any speed
        if full_speed is not None:
            full_speed.wait()
        begin = clock()
        run()
        taken = clock() - begin - asking
        spent += taken
        steady = 0 if taken < _FASTER * best else steady + 1
        best = min(best, taken)
        recent.append(taken)
    return sorted(recent)[(len(recent) - 1) // 2]
