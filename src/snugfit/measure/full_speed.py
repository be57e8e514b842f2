"""When this machine computes at its full speed: a few small operators, timed, tell.

A processor that is shared with other machines is slower for milliseconds to seconds at a time, and the load of this one does
not show it: operators bound by code take 1.85 times as long then, those bound by arithmetic or memory 1.2 times
(docs/log). So no factor takes it out of a time. But the few operators take either what they always take or nearly twice
as much, and who times something waits until they are fast.
"""

from __future__ import annotations

import functools
import time

import torch
import torch.nn.functional as F

from snugfit.measure.processor import busy_clock

SLOWER = 1.15
"""How many times as long as at full speed the few operators may take."""
_RUNS, _BEST = 1000, 0.1
"""Runs of the few operators by which full speed is known, some 60 ms, and the part of them that is no slower than it."""
_COLD = 8
"""Runs of the few operators behind a training step of which one is as fast as ever: their code and tensors are no longer
in caches, and the first five took 220, 140, 80, 65 and 60 microseconds in place of 55."""
_WAIT_SECONDS = 3.0
"""Most seconds that are waited at once; of 1,400 slow times in 90 seconds the longest took 2.9."""


def few_operators() -> None:
    """Runs what a step runs between two runs of the same operator, in little: other code, and other memory."""
    rows, scale = _tensors()
    F.layer_norm(rows, scale.shape, scale, scale)
    torch.softmax(rows, -1)
    torch.mm(rows, rows)
    rows.t().contiguous()
    F.gelu(rows)
    rows.to(torch.bfloat16)
    torch.cat([rows, rows])
    torch.add(rows, rows * 2)


@functools.cache
def _tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(64, 64), torch.ones(64)


def _few_seconds() -> float:
    clock = busy_clock()
    begin = clock()
    few_operators()
    return clock() - begin


def few_operators_seconds() -> float:
    """Returns how long the few operators take at the fastest speed that is seen now."""
    return sorted(_few_seconds() for _ in range(_RUNS))[int(_BEST * _RUNS)]


class FullSpeed:
    """Waits for this machine's full speed, as long as its patience lasts."""

    def __init__(self, seconds: float, patience: float) -> None:
        """Waits for nothing yet.

        Args:
            seconds: What the few operators take at full speed.
            patience: Most seconds of waiting, all waits together.
        """
        self._seconds = seconds
        self.patience = patience
        """Seconds that may still be waited."""
        self.missed = 0
        """Waits that ended before full speed came."""

    def is_here(self) -> bool:
        """Returns whether the machine computes at full speed at this moment, be it behind operators with large tensors."""
        return any(self._is_fast() for _ in range(_COLD))

    def _is_fast(self) -> bool:
        return _few_seconds() <= SLOWER * self._seconds

    def wait(self) -> bool:
        """Waits for full speed.

        The operators themselves are what it waits with: a processor that slept is slow when it begins again.

        Returns:
            Whether it came.
        """
        begin = time.perf_counter()
        limit = min(self.patience, _WAIT_SECONDS)
        while not (fast := self._is_fast()) and time.perf_counter() - begin < limit:
            pass
        waited = time.perf_counter() - begin
        if waited > 2 * SLOWER * self._seconds:  # what looking once takes is no waiting
            self.patience = max(self.patience - waited, 0.0)
        self.missed += not fast
        return fast
