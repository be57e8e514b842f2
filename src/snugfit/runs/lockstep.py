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
        """Takes the processes, and the signal by which this one may be asked to stop.

        `ranks`: the processes that share every batch; None: this one alone.
        """
        self._ranks, self.stop = ranks, stop
        if ranks is not None:
            ranks.wish = lambda: int(self.stop.received or 0)

    @property
    def share(self) -> tuple[int, int]:
        """The share of every batch that this process takes, and how many shares there are."""
        return (0, 1) if self._ranks is None else (self._ranks.sharer, self._ranks.sharers)

    @property
    def stopped_by(self) -> signal.Signals | None:
        """The signal that ends the run; with several processes, only once all have been told of it."""
        if self._ranks is None:
            return self.stop.received
        return signal.Signals(self._ranks.wished) if self._ranks.wished else None

    def sums(self, numbers: Sequence[int]) -> list[int]:
        """Returns whole numbers, each summed over the processes."""
        if self._ranks is None:
            return list(numbers)
        return [int(sum(each)) for each in zip(*self._ranks.agree_by_share(numbers), strict=True)]

    def first_of(self, number: float) -> float:
        """Returns the first process's number, by which all decide."""
        return number if self._ranks is None else self._ranks.agree([number])[0][0]

    def telling(self, batches: Iterable[Any]) -> Generator[Any, None, None]:
        """Yields batches; before each one the processes tell each other whether one was asked to stop."""
        for batch in batches:
            if self._ranks is not None:
                self._ranks.agree([])
            yield batch
            del batch

    def seeded(
        self, batches: Generator[Any, None, None], seed: int, step: Callable[[], int]
    ) -> Generator[Any, None, None]:
        """Yields batches; several processes each reseed before every one, from seed, step and process number."""
        while True:
            if self._ranks is not None:
                own = np.random.SeedSequence((seed, step(), self._ranks.sharer))
                seed_everything(int(own.generate_state(1, np.uint64)[0] >> 1))
            batch = next(batches, None)
            if batch is None:
                return
            yield batch
            del batch
