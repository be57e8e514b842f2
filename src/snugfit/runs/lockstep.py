"""Loops of several processes that do the same at the same time: who collects weights together must never wait in vain.

Each reads its own share of every batch, stops after the same step as the others, and draws random numbers of its own, which
depend on seed, step and process alone. One process by itself is the same with nobody to ask.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import numpy as np

from snugfit.runs.stop_signal import StopSignal
from snugfit.techniques.shard.ranks import Ranks
from snugfit.training.random_state import seed_everything


class Lockstep:
    """What the loop of one process knows of the others."""

    def __init__(self, ranks: Ranks | None, stop: StopSignal) -> None:
        """Takes the processes.

        Args:
            ranks: The processes that share every batch; None: this one alone.
            stop: What this process was asked.
        """
        self._ranks, self._stop = ranks, stop
        if ranks is not None:
            ranks.wish = lambda: int(stop.received or 0)

    @property
    def share(self) -> tuple[int, int]:
        """Which share of every batch this process takes, and how many there are."""
        return (0, 1) if self._ranks is None else (self._ranks.sharer, self._ranks.sharers)

    @property
    def stopped_by(self) -> signal.Signals | None:
        """The signal that ends the run; of several processes, once all have been told of it."""
        if self._ranks is None:
            return self._stop.received
        return signal.Signals(self._ranks.wished) if self._ranks.wished else None

    def sums(self, numbers: Sequence[int]) -> list[int]:
        """Returns whole numbers, each added up over the processes."""
        if self._ranks is None:
            return list(numbers)
        return [int(sum(each)) for each in zip(*self._ranks.agree_by_share(numbers), strict=True)]

    def first_of(self, number: float) -> float:
        """Returns the first process's number, by which all of them decide."""
        return number if self._ranks is None else self._ranks.agree([number])[0][0]

    def telling(self, batches: Iterable[Any]) -> Generator[Any, None, None]:
        """Yields batches; before each of them all processes hear whether one was asked to stop."""
        for batch in batches:
            if self._ranks is not None:
                self._ranks.agree([])
            yield batch
            del batch

    def seeded(
        self, batches: Generator[Any, None, None], seed: int, step: Callable[[], int]
    ) -> Generator[Any, None, None]:
        """Yields batches; of several processes, each draws anew from there on, other numbers than the others.

        Args:
            batches: The batches of an epoch.
            seed: The run's.
            step: Returns how many updates are done.
        """
        while True:
            if self._ranks is not None:
                own = np.random.SeedSequence((seed, step(), self._ranks.sharer))
                seed_everything(int(own.generate_state(1, np.uint64)[0] >> 1))
            batch = next(batches, None)
            if batch is None:
                return
            yield batch
            del batch
