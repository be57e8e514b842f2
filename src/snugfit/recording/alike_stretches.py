"""Finds the stretches of a sequence that come once for each equal block, from two sequences that differ by one block.

What a run does is a line of tokens: births, deaths, operators. A model with one block more does the same and, at some places
(forward, backward, the update, each list of an optimizer), one stretch more, which repeats the stretch before it token for
token (`repeated_regions.py`). What lies outside of these regions is the same in both lines, one to one.

Tokens refer to earlier ones (a death to its birth), and some belong to a block by its number. In a region, both are
followed from stretch to stretch: the number grows or falls by one or stays, and so does the stretch that is referred to. The
first and the last stretches may do otherwise (the first block's input has no gradient); what they refer to is then counted
from the beginning or from the end, whichever holds in both lines. Whatever follows no such rule is refused.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from snugfit.recording.repeated_regions import NotAlike, Region, regions_of

NO_BLOCK = -1
"""Label of a token that belongs to no block."""


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A sequence of tokens."""

    signs: Sequence[int]
    """What each token is, apart from its block and from what it refers to."""
    labels: Sequence[int]
    """The block each token belongs to, or `NO_BLOCK`."""
    references: Sequence[tuple[int, ...]]
    """Positions of the earlier tokens that each refers to."""


class _Place(NamedTuple):
    """A token by region, position in a stretch and number of the stretch; outside of regions -1, its count there, 0."""

    region: int
    offset: int
    stretch: int


class _Anchored(NamedTuple):
    """A place that is counted from the beginning, or from the end of its region."""

    place: _Place
    from_end: bool


class _Rule(NamedTuple):
    """What the tokens at one position of the stretches refer to."""

    first: int
    """The first stretch that the rule holds for; those before it refer to `before`."""
    last: int
    """The last one; those behind it refer to `behind`."""
    slope: int
    """By how much the stretch referred to grows from one to the next: 1, -1, or 0 for always the same token."""
    target: _Place
    """What stretch 0 would refer to."""
    before: tuple[_Anchored, ...]
    behind: tuple[_Anchored, ...]


class Pattern:
    """How a line grows with the number of equal blocks."""

    def __init__(self, shorter: Line, longer: Line) -> None:
        """Finds the regions and the rules in them; `NotAlike` where there are none."""
        self._short, self._long = shorter, longer
        self.regions = regions_of(shorter.signs, longer.signs)
        self._starts = [region.start for region in self.regions]
        shift, short_starts = 0, []
        for region in self.regions:
            short_starts.append(region.start - shift)
            shift += region.period
        self._short_starts = short_starts
        self._outside = self._tokens_outside()
        self._labels = [self._labels_in(number) for number in range(len(self.regions))]
        self._rules = [self._rules_in(number) for number in range(len(self.regions))]
        self._outer_labels = [self._outer_label(*pair) for pair in self._outside]
        self._outer_references = [self._outer_reference(*pair) for pair in self._outside]

    @property
    def outside(self) -> list[tuple[int, int]]:
        """Positions of the tokens outside of regions, in the shorter and in the longer line."""
        return self._outside

    def columns(self) -> Iterator[list[int]]:
        """Yields, for each position in the stretches of each region, the positions of its tokens in the longer line."""
        for number, region in enumerate(self.regions):
            for offset in range(region.period):
                yield self._column(number, offset, longer=True)

    def beginnings(self) -> Iterator[tuple[int, int]]:
        """Yields the positions of the tokens of each region's first stretch, in the shorter line and in the longer one."""
        for number, region in enumerate(self.regions):
            for offset in range(region.period):
                yield self._column(number, offset, longer=False)[0], self._column(number, offset, longer=True)[0]

    def expanded(self, more: int) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """Yields the tokens of a line with more blocks than the longer one has.

        `more`: how many more; -1 gives the shorter line.
        For each token: its position in the longer line (of one like it), its block, and the positions that it refers to.
        """
        bases, outer = self._expanded_places(more)

        def at(anchored: _Anchored) -> int:
            region, offset, stretch = anchored.place
            if region < 0:
                return outer[offset]
            return bases[region] + offset + self.regions[region].period * (stretch + (more if anchored.from_end else 0))

        count = 0
        for number, region in enumerate([*self.regions, Region(len(self._long.signs), len(self._long.signs), 1)]):
            while count < len(self._outside) and self._outside[count][1] < region.start:
                label, grows = self._outer_labels[count]
                targets = tuple(map(at, self._outer_references[count]))
                yield self._outside[count][1], label + more if grows else label, targets
                count += 1
            if number == len(self.regions):
                return
            period, labels, rules = region.period, self._labels[number], self._rules[number]
            recorded = (region.end - region.start) // period
            for place in range(region.end - region.start + more * period):
                stretch, offset = divmod(place, period)
                known = min(stretch, recorded - 1)
                label, slope, grows = labels[offset]
                label += slope * stretch + (more if grows else 0)
                targets = ()
                if rules[offset]:
                    targets = tuple(self._target(rule, stretch, more, bases, at) for rule in rules[offset])
                yield region.start + known * period + offset, label, targets

    def _target(self, rule: _Rule, stretch: int, more: int, bases: list[int], at: Callable[[_Anchored], int]) -> int:
        if stretch < rule.first:
            return at(rule.before[stretch])
        if stretch > rule.last + more:
            return at(rule.behind[stretch - rule.last - more - 1])
        region, offset, origin = rule.target
        if region < 0:
            return at(_Anchored(rule.target, False))
        origin += rule.slope * stretch + (more if rule.slope < 0 else 0)
        return bases[region] + offset + self.regions[region].period * origin

    def _expanded_places(self, more: int) -> tuple[list[int], list[int]]:
        """Where regions begin, and where the tokens outside of them are, in the expanded line."""
        bases, outer, shift, number = [], [], 0, 0
        for _, position in self._outside:
            while number < len(self.regions) and self.regions[number].start < position:
                bases.append(self.regions[number].start + shift)
                shift += more * self.regions[number].period
                number += 1
            outer.append(position + shift)
        for region in self.regions[number:]:
            bases.append(region.start + shift)
            shift += more * region.period
        return bases, outer

    def _tokens_outside(self) -> list[tuple[int, int]]:
        found, position, shift = [], 0, 0
        for region in [*self.regions, Region(len(self._long.signs), len(self._long.signs), 0)]:
            found += [(at - shift, at) for at in range(position, region.start)]
            position, shift = region.end, shift + region.period
        return found

    def _column(self, number: int, offset: int, *, longer: bool) -> list[int]:
        region = self.regions[number]
        start = region.start if longer else self._short_starts[number]
        length = region.end - region.start - (0 if longer else region.period)
        return list(range(start + offset, start + length, region.period))

    def _place(self, position: int, *, longer: bool) -> _Place:
        starts = self._starts if longer else self._short_starts
        number = bisect.bisect_right(starts, position) - 1
        if number >= 0:
            region = self.regions[number]
            inside = position - starts[number]
            if inside < region.end - region.start - (0 if longer else region.period):
                return _Place(number, inside % region.period, inside // region.period)
        before = sum(
            region.end - region.start - (0 if longer else region.period) for region in self.regions[: number + 1]
        )
        return _Place(-1, position - before, 0)

    def _labels_in(self, number: int) -> list[tuple[int, int, bool]]:
        """For each position in a stretch: label in stretch 0, by how much it grows, and whether with more blocks."""
        found = []
        for offset in range(self.regions[number].period):
            long = [self._long.labels[at] for at in self._column(number, offset, longer=True)]
            short = [self._short.labels[at] for at in self._column(number, offset, longer=False)]
            slope = long[1] - long[0]
            grows = short[0] == long[0] - 1
            falling = slope < 0
            if (
                slope not in (-1, 0, 1)
                or any(after - before != slope for before, after in itertools.pairwise(long))
                or any(after - before != slope for before, after in itertools.pairwise(short))
                or not (grows or short[0] == long[0])
                or (slope and grows is not falling)
                or (NO_BLOCK in long and (slope or grows))
            ):
                raise NotAlike("blocks come in another order")
            found.append((long[0], slope, grows))
        return found

    def _rules_in(self, number: int) -> list[tuple[_Rule, ...]]:
        found = []
        for offset in range(self.regions[number].period):
            long, short = (self._column(number, offset, longer=longer) for longer in (True, False))
            counts = {len(self._long.references[at]) for at in long}
            if len(counts) > 1:
                raise NotAlike("stretches wait for different things")
            rules = []
            for slot in range(counts.pop()):
                of_long = [self._place(self._long.references[at][slot], longer=True) for at in long]
                of_short = [self._place(self._short.references[at][slot], longer=False) for at in short]
                rules.append(_rule(of_short, of_long))
            found.append(tuple(rules))
        return found

    def _outer_label(self, short: int, long: int) -> tuple[int, bool]:
        one, other = self._short.labels[short], self._long.labels[long]
        if one == other:
            return other, False
        if one != other - 1 or one == NO_BLOCK:
            raise NotAlike("a token belongs to another block")
        return other, True

    def _outer_reference(self, short: int, long: int) -> tuple[_Anchored, ...]:
        of_short, of_long = self._short.references[short], self._long.references[long]
        if len(of_short) != len(of_long):
            raise NotAlike("a token waits for other things")
        return tuple(
            _anchored(self._place(one, longer=False), self._place(other, longer=True))
            for one, other in zip(of_short, of_long, strict=True)
        )


def _anchored(short: _Place, long: _Place) -> _Anchored:
    if short == long:
        return _Anchored(long, False)
    if short[:2] != long[:2] or short.stretch != long.stretch - 1:
        raise NotAlike("a token refers to another one")
    return _Anchored(long, True)


def _rule(short: list[_Place], long: list[_Place]) -> _Rule:
    """The rule that most stretches follow one after the other, in both lines."""
    first, last, slope = _longest(long)
    region, offset, stretch = long[first]
    target = _Place(region, offset, stretch - slope * first)
    behind = len(long) - 1 - last
    for number in range(first, len(short) - behind):
        wanted = target.stretch + slope * number - (1 if slope < 0 else 0)
        if short[number] != (region, offset, wanted):
            raise NotAlike("stretches refer to other stretches")
    return _Rule(
        first,
        last,
        slope,
        target,
        tuple(_anchored(short[number], long[number]) for number in range(first)),
        tuple(_anchored(short[number - 1], long[number]) for number in range(last + 1, len(long))),
    )


def _longest(places: list[_Place]) -> tuple[int, int, int]:
    """First and last of the longest run of places that follow each other by the same step, and the step."""
    best = (0, 0, 0)
    first, slope = 0, None
    for number in range(1, len(places)):
        one, other = places[number - 1], places[number]
        step = other.stretch - one.stretch if one[:2] == other[:2] else None
        if one.region < 0 and step is not None:
            step = 0
        elif step not in (1, -1):
            step = None
        if step is None or step != slope:
            first, slope = number - 1, step
        if step is not None and number - first > best[1] - best[0]:
            best = (first, number, step)
    if best[0] == best[1]:
        raise NotAlike("stretches refer to nothing in common")
    return best
