"""Whether memory grows step by step: told from what is alive at the ends of steps, and apart from what only varies.

A leak adds about as much at each step, so the least of every stretch of steps lies above the least of the stretch before,
by more than steps differ among each other. Batches of varying lengths, evaluations and caches that fill once do not.
Stretches double, so that a slow leak is seen as well, only later.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

WARM_UP = 3
"""First steps that do not count: state of optimizers, caches and workspaces appear in them."""
_SHORTEST = 2
"""Values in the shortest stretch."""
_STRETCHES = 4
_LEAST_BYTES = 2**18
_LEAST_SHARE = 0.002
"""Growth over the stretches, as a part of what is alive, that is told."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """Memory that grew at each step of a row."""

    per_step_bytes: int
    """Bytes that a step adds."""
    steps: int
    """How many steps were looked at."""
    from_bytes: int
    """What was alive before."""
    to_bytes: int
    """What was alive after."""


def grows(alive_bytes: Sequence[int], *, least_bytes: int, stride: int = 1) -> Growth | None:
    """Returns the growth at the end of a series, None where there is none.

    `alive_bytes`: bytes alive at the end of each step from the first on.
    `least_bytes`: growth of a step that is worth telling.
    `stride`: of how many steps the series has one.
    """
    series = alive_bytes[WARM_UP:]
    length = _SHORTEST
    while length * _STRETCHES <= len(series):
        found = _grown(series[-length * _STRETCHES :], length, stride)
        if found is not None and found.per_step_bytes >= least_bytes:
            return found
        length *= 2
    return None


def _grown(series: Sequence[int], length: int, stride: int) -> Growth | None:
    stretches = [series[start : start + length] for start in range(0, len(series), length)]
    floors = [min(stretch) for stretch in stretches]
    rises = [after - before for before, after in itertools.pairwise(floors)]
    mean = sum(rises) / len(rises)
    if mean <= 0 or min(rises) < mean / 2 or max(rises) > 2 * mean:
        return None
    if sum(rises) < max(_LEAST_BYTES, _LEAST_SHARE * floors[0]):
        return None
    # What a step adds apart, steps of a stretch must be alike.
    slope = mean / length
    flat = [[size - slope * place for place, size in enumerate(stretch)] for stretch in stretches]
    if max(max(stretch) - min(stretch) for stretch in flat) > mean:
        return None
    return Growth(
        per_step_bytes=round(slope / stride), steps=stride * len(series), from_bytes=series[0], to_bytes=series[-1]
    )
