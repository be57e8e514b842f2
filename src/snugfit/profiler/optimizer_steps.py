"""Which optimizers a script made, and how often each of them has stepped."""

from __future__ import annotations

import weakref
from typing import Any

from torch.optim import Optimizer

from snugfit.attributes import Change
from snugfit.simulator.watched_script import MOST_STEPS


class OptimizerSteps:
    """Counts steps until enough are seen: a second optimizer, as a GAN has, is waited for as in an estimate."""

    def __init__(self, wanted: int) -> None:
        """`wanted`: steps of the optimizer with the most."""
        self._wanted, self._counts, self._made = wanted, weakref.WeakKeyDictionary[Any, int](), weakref.WeakSet[Any]()
        self.most = 0
        """Steps of the optimizer with the most."""
        self.unstepped = 0
        """Optimizers that were there at the last step and had not stepped."""

    def changes(self) -> list[Change]:
        """Returns what notes that an optimizer is made."""
        make = Optimizer.__init__

        def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            self._made.add(optimizer)

        return [(Optimizer, "__init__", made)]

    def count(self, optimizer: Any) -> bool:
        """Counts a step; returns whether it ends one of the run."""
        count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        ends = count > self.most
        self.most = max(self.most, count)
        return ends

    def enough(self) -> bool:
        """Whether enough steps were seen, of each optimizer two at least (state is made in the first)."""
        least = min(2, self._wanted)
        self.unstepped = sum(one not in self._counts for one in self._made)
        waits = self.most < MOST_STEPS and any(self._counts.get(one, 0) < least for one in self._made)
        return self.most >= self._wanted and not waits
