"""How far composed numbers were off where they were simulated afterwards, which corrects the guesses like them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

Group = tuple[str, int, str]
"""Variant, size of microbatch, way of updating."""
Numbers = tuple[float, float]
"""Seconds and bytes."""
WORTH = 0.002
"""Share of the best time by which a candidate must promise to be faster, to be worth a simulation."""
_SAME, _MORE = 0.002, 1.004
"""Bytes that are off by the same factor again are guessed so much higher."""


class Corrections:
    """Factors that were learned, by group and by what was done to its blocks (mode)."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[Group, str], float] = {}
        self._bytes: dict[tuple[Group, str], float] = {}

    def learn(self, group: Group, mode: str, composed: Numbers, guessed_bytes: float, simulated: Numbers) -> None:
        """Takes a guess's factors from what its simulation gave; `guessed_bytes`: with what was known before."""
        seconds, need = composed
        self._seconds[group, mode] = simulated[0] / max(seconds, 1e-12)
        factor = simulated[1] / max(need, 1.0)
        known = self._bytes.get((group, mode))
        if known is not None and abs(factor - known) < _SAME and simulated[1] > guessed_bytes:
            factor *= _MORE  # the same guess again would only just fail again
        self._bytes[group, mode] = factor

    def seconds_off(self, group: Group, mode: str, unknown: float, *, simulated: bool) -> float:
        """Returns the factor by which guesses at time were off: for this group, for relatives, or `unknown`.

        `simulated`: whether nothing done to any block was simulated at this size, which is composed from then.
        """
        if (group, mode) in self._seconds:
            return self._seconds[group, mode]
        if simulated:
            return 1.0
        near = _of_relatives(self._seconds, group, mode)
        if near is None:  # what was wrong about this size is wrong whatever is done to blocks
            alike = [(one[0], off) for (one, _), off in self._seconds.items() if one[1] == group[1]]
            mine = [off for variant, off in alike if variant == group[0]] or [off for _, off in alike]
            near = min(mine, default=None)
        return unknown if near is None else near * (1 - WORTH)  # this one may be a little better

    def bytes_off(self, group: Group, mode: str) -> float:
        """Returns the factor by which guesses at memory were off: for this group, for relatives, or none."""
        if (group, mode) in self._bytes:
            return self._bytes[group, mode]
        return _of_relatives(self._bytes, group, mode) or 1.0

    def soberly(self, group: Group, mode: str, composed: Numbers) -> Numbers:
        """Returns composed numbers as relatives were off, without hope: what a simulation is likely to give."""
        usual = statistics.median(self._bytes.values()) if self._bytes else 1.0
        seconds = composed[0] * (_of_relatives(self._seconds, group, mode) or 1.0)
        return seconds, composed[1] * (_of_relatives(self._bytes, group, mode) or usual)


def _of_relatives(factors: Mapping[tuple[Group, str], float], group: Group, mode: str) -> float | None:
    """A correction between those seen at the nearest microbatch sizes of a variant and mode, by any update."""
    variant, size, _ = group
    seen = {one[1]: factor for (one, other), factor in factors.items() if (one[0], other) == (variant, mode)}
    if not seen:
        return None
    below = max((other for other in seen if other <= size), default=min(seen))
    above = min((other for other in seen if other >= size), default=max(seen))
    part = (size - below) / (above - below) if above > below else 0.0
    return seen[below] + (seen[above] - seen[below]) * min(max(part, 0.0), 1.0)
