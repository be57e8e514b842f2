"""Finds where the longer of two lines of tokens has a stretch once more, by going through both side by side.

Around each of these places, the region is taken in which every token equals the one a stretch before it; what lies outside
of all regions is the same in both lines, one to one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class NotAlike(Exception):
    """Two lines that do not differ by one block alone, or in a way that no rule covers."""


class Region(NamedTuple):
    """A part of the longer line in which every token equals the one `period` before it."""

    start: int
    end: int
    period: int


def regions_of(short: Sequence[int], long: Sequence[int]) -> list[Region]:
    """Returns the regions of the longer line by position; `NotAlike` where the lines differ by anything else."""
    found: list[Region] = []
    one = other = 0
    left = len(long) - len(short)
    while True:
        while one < len(short) and other < len(long) and short[one] == long[other]:
            one, other = one + 1, other + 1
        if one == len(short) and other == len(long):
            return found
        period = _period(short, long, one, other, left)
        end = other + period
        start = other
        before = found[-1].end if found else 0
        while start > before and long[start - 1] == long[start - 1 + period]:
            start -= 1
        if end - start < 2 * period:
            raise NotAlike("a stretch comes for the first time")
        found.append(Region(start, end, period))
        other, left = end, left - period


def _period(short: Sequence[int], long: Sequence[int], one: int, other: int, most: int) -> int:
    """How long the stretch is that comes once more at a position; the one after which both lines agree longest."""
    best, longest = 0, 0
    for period in range(1, min(most, other) + 1):
        end = other + period
        if end < len(long) and one < len(short):
            if long[end] != short[one]:
                continue
        elif end != len(long) or one != len(short):
            continue
        if long[other - 1] != long[end - 1] or long[other - period : other] != long[other:end]:
            continue
        agreed = 1
        while one + agreed < len(short) and end + agreed < len(long) and short[one + agreed] == long[end + agreed]:
            agreed += 1
        if agreed > longest:
            best, longest = period, agreed
    if not best:
        raise NotAlike("the lines differ by more than stretches that repeat")
    return best
