"""Expandable segments: address ranges that are mapped granule by granule as they are needed.

With `expandable_segments:True` a pool has one long address range instead of many segments. Memory is mapped into it at
the lowest address where a request fits, a granule at a time (2 MiB in the small pool, the size of a large segment in
the large pool), and unmapped granule by granule when the card is full. So blocks of growing sizes leave no slivers.

This file knows which part of the ranges is mapped; the free and live blocks inside of it are the allocator's.

Source: `ExpandableSegment`, `find_expandable_block`, `map_block` and `unmap_block` of
https://github.com/pytorch/pytorch/blob/eb42ad6eca0ce61e7c581212b4bf32f991425571/c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

SHIFT = 52
"""Bits of an address in a key of a free block, whose size stands above it."""
MASK = (1 << SHIFT) - 1


class ExpandableSegments:
    """The address ranges of one pool."""

    __slots__ = ("_bases", "_order", "_unmapped", "granule")

    def __init__(self, granule: int) -> None:
        """Starts without a range; `granule` is what is mapped and unmapped at once, in bytes."""
        self.granule = granule
        self._bases: dict[int, int] = {}  # range's first byte -> its size
        self._unmapped: dict[int, int] = {}  # unmapped stretch's first byte -> its size
        self._order: list[int] = []  # unmapped stretches by address

    def add(self, start: int, size: int) -> None:
        """Reserves another address range of whole granules; nothing of it is mapped."""
        self._bases[start] = size
        self._unmapped[start] = size
        insort(self._order, start)

    def choose(self, keys: Sequence[int], at: int) -> int:
        """Returns which free block a request gets: a block counts as what it can grow to, so larger ones go before it.

        `keys`: free blocks, `size << SHIFT | address`, the smallest first.
        `at`: the first of them that is large enough.
        """
        room = self._unmapped.get
        while at + 1 < len(keys):
            this, following = keys[at], keys[at + 1]
            grown = (this >> SHIFT) + room((this & MASK) + (this >> SHIFT), 0)
            if (following >> SHIFT) + room((following & MASK) + (following >> SHIFT), 0) >= grown:
                break
            at += 1
        return at

    def find(self, size: int, starts: Mapping[int, int], ends: Mapping[int, int]) -> int | None:
        """Returns the lowest address at which free and unmapped stretches together have room.

        `starts`: free blocks, first byte -> size.
        `ends`: free blocks, byte after -> first byte.
        The first byte of a free block or an unmapped stretch; None when a new range is needed.
        """
        for unmapped in self._order:
            start = ends.get(unmapped, unmapped)
            end = start
            while end - start < size and (step := starts.get(end, 0) or self._unmapped.get(end, 0)):
                end += step
            if end - start >= size:
                return start
        return None

    def plan(self, start: int, size: int) -> int:
        """Returns the bytes (whole granules) to map for a request at the start of an unmapped stretch."""
        whole = -(-size // self.granule) * self.granule
        return min(whole, self._unmapped[start])

    def map(self, start: int, size: int) -> None:
        """Maps the start of an unmapped stretch; `size` is what `plan` returned."""
        rest = self._unmapped.pop(start) - size
        del self._order[bisect_left(self._order, start)]
        if rest:
            self._unmapped[start + size] = rest
            insort(self._order, start + size)

    def inner(self, start: int, size: int) -> tuple[int, int]:
        """Returns the granules that lie wholly inside a block.

        First byte and the byte after the last; nothing lies inside when the first is not smaller.
        """
        base = max(begin for begin in self._bases if begin <= start)
        first = base + -(-(start - base) // self.granule) * self.granule
        last = base + (start + size - base) // self.granule * self.granule
        return first, last

    def unmap(self, start: int, size: int) -> None:
        """Unmaps whole granules; a range of which nothing is mapped any more is dropped."""
        end = start + size
        if end in self._unmapped:
            size += self._unmapped.pop(end)
            del self._order[bisect_left(self._order, end)]
        at = bisect_left(self._order, start)
        if at and self._order[at - 1] + self._unmapped[self._order[at - 1]] == start:
            start = self._order.pop(at - 1)
            size += self._unmapped.pop(start)
        if self._bases.get(start) == size:
            del self._bases[start]
            return
        self._unmapped[start] = size
        insort(self._order, start)

    def mapped(self) -> list[tuple[int, int]]:
        """Returns the mapped stretches as (first byte, bytes), by address."""
        stretches = []
        for base, length in sorted(self._bases.items()):
            start = base
            for unmapped in self._order[bisect_left(self._order, base) : bisect_left(self._order, base + length)]:
                if unmapped > start:
                    stretches.append((start, unmapped - start))
                start = unmapped + self._unmapped[unmapped]
            if start < base + length:
                stretches.append((start, base + length - start))
        return stretches
