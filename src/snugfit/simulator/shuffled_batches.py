"""The widest batches that shuffling makes, where batches lay samples end to end (graphs, packed texts).

Padded batches are as wide as their longest sample, which some batch of each epoch has. The widest samples of all together
are met by no shuffle, so batches are drawn as a loader draws them, and the widest of these stand for a run.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence

EPOCHS = 100
"""Shuffles that are drawn."""
_MOST_DRAWN = 5000
"""Batches that are drawn at most."""
_NEAR = 0.1
"""How far the numbers of a mixed batch may be from those of its samples, as a part of what lies between the extremes."""
Sizes = Mapping[int, Sequence[tuple[int, ...]]]
"""Number of a sample -> the sizes of what it holds."""


def lies_end_to_end(
    widths: Sizes, widest: list[int], narrowest: list[int], numbers_of: Callable[[list[int]], int]
) -> bool:
    """Returns whether a batch holds the numbers of its samples, and is not padded to the longest.

    `numbers_of`: how many numbers the batch of some samples holds.
    """
    half = len(widest) // 2
    mixed = [*widest[:half], *narrowest[half:]]
    if not half:
        return False
    least, some, most = map(numbers_of, (narrowest, mixed, widest))
    few, own, many = (sum(_total(widths[number]) for number in batch) for batch in (narrowest, mixed, widest))
    if not (few < own < many and least < most):
        return False
    share = (own - few) / (many - few)
    return share < 1 - 2 * _NEAR and abs((some - least) / (most - least) - share) < _NEAR


def widest_drawn(widths: Sizes, size: int, samples: int) -> list[int]:
    """Returns a batch that is about as wide in each direction (nodes, edges) as the widest of many shuffles.

    `samples`: of the data set, of which some may not have been looked at.
    """
    held = {number: [math.prod(leaf) for leaf in leaves] for number, leaves in widths.items()}
    numbers, draw = list(held), random.Random(0)  # its own: the script's must not move on
    widest: list[int] = []
    most: list[int] = []
    for _ in range(min(EPOCHS * -(-samples // size), _MOST_DRAWN)):
        batch = draw.sample(numbers, size)
        sums = _sums(held, batch)
        if sum(sums) > sum(_sums(held, widest)):
            widest = batch
        most = list(map(max, itertools.zip_longest(most, sums, fillvalue=0)))
    for direction, wanted in enumerate(most):
        others = iter(sorted(numbers, key=lambda number: -_along(held[number], direction)))
        while sum(_along(held[number], direction) for number in widest) < wanted:
            widest.remove(min(widest, key=lambda number: _along(held[number], direction)))
            widest.append(next(number for number in others if number not in widest))
    return widest


def _sums(held: Mapping[int, list[int]], batch: list[int]) -> list[int]:
    return list(map(sum, itertools.zip_longest(*(held[number] for number in batch), fillvalue=0)))


def _along(sizes: list[int], direction: int) -> int:
    return sizes[direction] if direction < len(sizes) else 0


def _total(leaves: Sequence[tuple[int, ...]]) -> int:
    return sum(map(math.prod, leaves))
