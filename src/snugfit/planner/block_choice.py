"""The cheapest choice of blocks to compute again or to offload: the least extra time for which every stretch fits."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator, Mapping

from snugfit.planner.knapsack import Item, cheapest
from snugfit.planner.profile import OUTSIDE, Label
from snugfit.planner.treatments import Treatment, cheaper

Done = Mapping[int, Treatment]
"""Index of a block -> what is done to it."""
_ALIKE = 1.02
"""Blocks whose bytes cost so nearly the same time are as good as one another."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a step while nothing is done to any block."""

    label: Label
    """Which one."""
    open: tuple[int, ...]
    """Indices of the blocks that are open."""
    bytes: float
    """What is alive at its highest point."""


@dataclasses.dataclass(frozen=True, slots=True)
class Levels:
    """The bytes of a step at one size of microbatch, updated in one way."""

    stretches: list[Stretch]
    """Those of forward and backward."""
    outside_bytes: float
    """What is alive outside of them."""
    scale: float
    """The size of a microbatch, over that at which treatments were seen."""

    def highest(self, done: Done) -> float:
        """Returns the bytes at the highest point of a step in which something is `done` to some blocks."""
        highest = self.outside_bytes
        for stretch in self.stretches:
            level = stretch.bytes - self.scale * sum(
                done[block].drops[block] for block in stretch.open if block in done
            )
            if stretch.label[1] in done:
                level += done[stretch.label[1]].inner.get(stretch.label, 0.0) * self.scale
            highest = max(highest, level)
        return highest

    def choice(self, room_bytes: float, recompute: Treatment | None, offload: Treatment | None) -> Done | None:
        """Returns the cheapest choice of blocks that fits, each of them treated in one of the ways given.

        With both ways, None as well where offloading no block would be cheaper than computing it again.
        """
        if self.outside_bytes > room_bytes:
            return None
        if recompute is not None:
            first = self.first_blocks(room_bytes, recompute)
            if first is None and offload is None:
                return None
            if offload is not None and first is not None and not cheaper(offload, recompute):
                return None
            found = None if offload is not None or first is None else self._proved(room_bytes, recompute, first)
            if found is not None:
                return found
        ways = [one for one in (recompute, offload) if one is not None]
        chosen = self.knapsack(room_bytes, ways)
        return chosen and self._in_front(room_bytes, ways, chosen)

    def first_blocks(self, room_bytes: float, recompute: Treatment) -> int | None:
        """Returns how many blocks from the front must be checkpointed to fit; None where all are not enough."""

        def fits(count: int) -> bool:
            return self.highest(dict.fromkeys(range(count), recompute)) <= room_bytes

        counts = range(len(recompute.drops) + 1)
        return bisect.bisect_left(counts, True, key=fits) if fits(counts[-1]) else None

    def _proved(self, room_bytes: float, recompute: Treatment, first: int) -> Done | None:
        """Blocks from the front, where that is provably the cheapest: as few as possible, and none is cheaper."""
        missing = self.highest({}) - room_bytes
        fewest = 0
        for drop in sorted(recompute.drops, reverse=True):
            if missing <= 0:
                break
            missing -= drop * self.scale
            fewest += 1
        # No choice can take fewer blocks, and none can be cheaper than the cheapest of so many.
        least = sum(sorted(recompute.seconds)[:fewest])
        return dict.fromkeys(range(first), recompute) if sum(recompute.seconds[:first]) <= _ALIKE * least else None

    def _in_front(self, room_bytes: float, ways: list[Treatment], chosen: Done) -> Done:
        """The same done to the first blocks, where that fits and costs hardly more: it takes fewer words."""
        front = dict(enumerate(sorted(chosen.values(), key=ways.index)))
        costs = [sum(one.seconds[block] for block, one in done.items()) for done in (front, chosen)]
        return front if self.highest(front) <= room_bytes and costs[0] <= _ALIKE * costs[1] else chosen

    def knapsack(self, room_bytes: float, ways: list[Treatment]) -> Done | None:
        """Returns the choice that costs the least time and for which every stretch fits; None where none does."""
        unit = max((cost for one in ways for cost in one.seconds), default=0) or 1e-12
        costs = [[cost / unit for cost in one.seconds] for one in ways]
        found = cheapest(costs, self._limits(room_bytes, ways))
        return None if found is None else {block: ways[number] for number, block in found}

    def _limits(self, room_bytes: float, ways: list[Treatment]) -> Iterator[tuple[dict[Item, float], float]]:
        """One limit for each stretch: what is done to a block lowers all in which it is open, and raises its own."""
        for stretch in self.stretches:
            weights: dict[Item, float] = {}
            for number, one in enumerate(ways):
                if stretch.label[1] != OUTSIDE:
                    weights[number, stretch.label[1]] = one.inner.get(stretch.label, 0.0) * self.scale
                for block in stretch.open:
                    weights[number, block] = weights.get((number, block), 0.0) - one.drops[block] * self.scale
            yield weights, room_bytes - stretch.bytes
