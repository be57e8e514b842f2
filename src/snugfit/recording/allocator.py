"""The CUDA caching allocator over ints: which block a request gets, and when the card is asked for more.

It decides whether a run goes out of memory, so it is modelled rule by rule and not approximated: rounding to 512 bytes,
a small and a large pool for each stream, best fit (smallest size, then lowest address), splitting, merging with free
neighbours, segments, and what is given back to the card when it is full. Addresses are ints; nothing is allocated.

Source: `c10/cuda/CUDACachingAllocator.cpp` of torch; the functions named in comments are those of
https://github.com/pytorch/pytorch/blob/eb42ad6eca0ce61e7c581212b4bf32f991425571/c10/cuda/CUDACachingAllocator.cpp.

How it is made fast: a block is no object. Free memory lives in two dicts, by start and by end, which makes merging two
look-ups; segments never touch, so neighbours by address are neighbours in one segment. A pool is a sorted list of ints
`size << 52 | address`, and best fit is one bisection.

Limits: addresses of new segments only grow (the driver may hand out an old range again, which matters only to ties of
equal size); what CUDA itself and other processes take is the caller's to subtract; private pools of CUDA graphs,
`record_stream`, and options of `PYTORCH_CUDA_ALLOC_CONF` other than `expandable_segments` are not modelled.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, insort
from collections.abc import Callable

from snugfit.errors import InputError
from snugfit.recording.allocator_sizes import (
    LARGE_SEGMENT_BYTES,
    MIN_BLOCK_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    segment_bytes,
)
from snugfit.recording.held_blocks import Block, Segment
from snugfit.recording.segments import MASK, SHIFT, ExpandableSegments
from snugfit.units import MIB, format_bytes

_NO_LIMIT = 1 << 62
_MOST_BYTES = 1 << 43
"""The largest request: addresses have 52 bits, and expandable segments a reach of 44."""
_GAP = 2 * MIB  # between segments, so that blocks of two segments are never neighbours by address


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AllocatorConfig:
    """The options of the allocator."""

    expandable_segments: bool = False
    """Whether segments grow instead of new ones being made."""


class OutOfMemory(Exception):
    """The card has no room left even after all cached segments were given back; replays turn it into data."""


class Pool:
    """Free blocks of one size class on one stream."""

    __slots__ = ("expandable", "keys", "small", "stream")

    def __init__(self, stream: int, small: bool) -> None:
        """Starts without blocks; `small`: serves requests up to `SMALL_BYTES` of its stream."""
        self.stream = stream
        self.small = small
        self.keys: list[int] = []
        self.expandable: ExpandableSegments | None = None


class CachingAllocator:
    """The state of the allocator of one card.

    Attributes:
        allocated_bytes: Sum of the sizes of live blocks, as `torch.cuda.memory_allocated` counts.
        reserved_bytes: Sum of the segments, as `torch.cuda.memory_reserved` counts.
        requested_bytes: Sum of what was asked for.
        peak_allocated_bytes: The largest `allocated_bytes` so far.
        peak_reserved_bytes: The largest `reserved_bytes` so far.
        refused_bytes: The smallest capacity that would have served a request for a segment that the card refused.
        retries: How often all cached segments were given back to try again.
    """

    __slots__ = (
        "_ends", "_large", "_live", "_next_address", "_segments", "_small", "_starts", "allocated_bytes", "capacity_bytes",
        "config", "observer", "peak_allocated_bytes", "peak_reserved_bytes", "refused_bytes", "requested_bytes",
        "reserved_bytes", "retries",
    )  # fmt: skip

    def __init__(
        self,
        config: AllocatorConfig | None = None,
        capacity_bytes: int | None = None,
        *,
        observer: Callable[[str, int, int, int], None] | None = None,
    ) -> None:
        """Starts with an empty card.

        `capacity_bytes`: what the card has for this process's segments; None for no limit.
        `observer`: told (action, address, bytes, stream) of every change of segments, with the actions that torch's
        memory history knows: `segment_alloc`, `segment_free`, `segment_map`, `segment_unmap`.
        """
        self.config = config if config is not None else AllocatorConfig()
        self.capacity_bytes = _NO_LIMIT if capacity_bytes is None else capacity_bytes
        self.observer = observer or (lambda *change: None)
        self.allocated_bytes = self.reserved_bytes = self.requested_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = self.retries = 0
        self.refused_bytes = _NO_LIMIT
        self._starts: dict[int, int] = {}  # free block's first byte -> its size
        self._ends: dict[int, int] = {}  # byte after a free block -> its first byte
        self._live: dict[int, tuple[int, int, Pool]] = {}  # first byte -> size, bytes asked for, pool
        self._segments: dict[int, tuple[int, Pool]] = {}  # first byte -> size, pool
        self._small: dict[int, Pool] = {}
        self._large: dict[int, Pool] = {}
        self._next_address = _GAP

    def malloc(self, nbytes: int, stream: int = 0) -> int:
        """Gives a block to a request of at least one byte (`malloc`, `get_free_block`, `alloc_found_block`).

        Returns its id, which is its address; raises `OutOfMemory` where the capacity is not enough.
        """
        size = (nbytes + MIN_BLOCK_BYTES - 1) & -MIN_BLOCK_BYTES
        pools = self._small if size <= SMALL_BYTES else self._large
        pool = pools.get(stream)
        if pool is None:
            pool = pools[stream] = Pool(stream, size <= SMALL_BYTES)
        keys = pool.keys
        at = bisect_left(keys, size << SHIFT)
        if pool.expandable is not None:
            at = pool.expandable.choose(keys, at)
        if at < len(keys):
            key = keys.pop(at)
            address = key & MASK
            found = key >> SHIFT
            del self._starts[address]
        else:
            address, found = self._grow(pool, size)
        rest = found - size
        # A remainder of the large pool that is no larger than a small request stays with its block, and is counted as
        # allocated.
        if rest > SMALL_BYTES or (rest and (pool.small or pool.expandable is not None)):
            start = address + size
            self._starts[start] = rest
            self._ends[start + rest] = start
            insort(keys, rest << SHIFT | start)
        else:
            size = found
            self._ends.pop(address + found, None)
        self._live[address] = (size, nbytes, pool)
        self.requested_bytes += nbytes
        self.allocated_bytes += size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return address

    def free(self, block: int) -> None:
        """Takes a block back and merges it with free neighbours (`free_block`, `try_merge_blocks`)."""
        size, nbytes, pool = self._live.pop(block)
        self.requested_bytes -= nbytes
        self.allocated_bytes -= size
        starts, ends, keys = self._starts, self._ends, pool.keys
        start, end = block, block + size
        before = ends.pop(block, None)
        if before is not None:
            length = starts.pop(before)
            del keys[bisect_left(keys, length << SHIFT | before)]
            start = before
        after = starts.pop(end, None)
        if after is not None:
            del keys[bisect_left(keys, after << SHIFT | end)]
            end += after
        starts[start] = end - start
        ends[end] = start
        insort(keys, (end - start) << SHIFT | start)

    def empty_cache(self) -> None:
        """Gives what is free back to the card: segments, or granules of expandable ones (`release_cached_blocks`)."""
        for pool in (*self._large.values(), *self._small.values()):
            for key in list(pool.keys):
                address, size = key & MASK, key >> SHIFT
                if pool.expandable is not None:
                    self._unmap(pool, pool.expandable, address, size)
                elif self._segments.get(address, (0, pool))[0] == size:  # `release_block`
                    self._take_out(pool, address, size)
                    del self._segments[address]
                    self.reserved_bytes -= size
                    self.observer("segment_free", address, size, pool.stream)

    def block_bytes(self, block: int) -> int:
        """Returns the size of a live block, which is what it counts in `allocated_bytes`."""
        return self._live[block][0]

    def segments(self) -> list[Segment]:
        """Returns all segments by address; for expandable ones, each mapped stretch."""
        found = [Segment(address, size, pool.stream, pool.small) for address, (size, pool) in self._segments.items()]
        for pool in (*self._small.values(), *self._large.values()):
            if pool.expandable is not None:
                found += [Segment(a, size, pool.stream, pool.small) for a, size in pool.expandable.mapped()]
        return sorted(found)

    def blocks(self, segment: Segment) -> list[Block]:
        """Returns live and free blocks of a segment by address; their sizes add up to the segment's."""
        blocks, address = [], segment.address
        while address < segment.address + segment.size_bytes:
            if address in self._live:
                size, nbytes, _ = self._live[address]
                blocks.append(Block(address, size, nbytes, True))
            else:
                size = self._starts[address]
                blocks.append(Block(address, size, 0, False))
            address += size
        return blocks

    def _grow(self, pool: Pool, size: int) -> tuple[int, int]:
        """Gets memory from the card, giving cached segments back where needed (the middle of `malloc`)."""
        if size > _MOST_BYTES:
            raise InputError(f"one tensor would take {format_bytes(size)}, which no card has. Give a smaller batch.")
        wanted = segment_bytes(size)
        found = self._ask(pool, size, wanted)
        if found is None:
            self.retries += 1
            self.empty_cache()
            found = self._ask(pool, size, wanted)
        if found is None:
            raise OutOfMemory(f"needs {wanted} more bytes at {self.reserved_bytes} reserved")
        return found

    def _ask(self, pool: Pool, size: int, wanted: int) -> tuple[int, int] | None:
        """One attempt to get memory from the card (`alloc_block`)."""
        if self.config.expandable_segments:
            return self._expand(pool, size)
        if self.reserved_bytes + wanted > self.capacity_bytes:
            self.refused_bytes = min(self.refused_bytes, self.reserved_bytes + wanted)
            return None
        address = self._next_address
        self._next_address += wanted + _GAP
        self._segments[address] = (wanted, pool)
        self._reserve(wanted)
        self.observer("segment_alloc", address, wanted, pool.stream)
        return address, wanted

    def _reserve(self, nbytes: int) -> None:
        self.reserved_bytes += nbytes
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes

    def _expand(self, pool: Pool, size: int) -> tuple[int, int] | None:
        """Maps memory at the lowest address where the request fits (`try_allocate_expandable_block`)."""
        if pool.expandable is None:
            pool.expandable = ExpandableSegments(SMALL_SEGMENT_BYTES if pool.small else LARGE_SEGMENT_BYTES)
        segments = pool.expandable
        start = segments.find(size, self._starts, self._ends)
        if start is None:
            reach = 1 << 44 if self.capacity_bytes == _NO_LIMIT else self.capacity_bytes * 9 // 8
            reach = max(-(-reach // segments.granule) * segments.granule, segments.granule)
            start = self._next_address
            self._next_address += reach + _GAP
            segments.add(start, reach)
        while (have := self._starts.get(start, 0)) < size:
            mapped = segments.plan(start + have, size - have)
            if mapped == 0 or self.reserved_bytes + mapped > self.capacity_bytes:
                return None
            segments.map(start + have, mapped)
            self._reserve(mapped)
            # Made live and freed at once: `free` merges it with its free neighbours.
            self._live[start + have] = (mapped, 0, pool)
            self.allocated_bytes += mapped
            self.free(start + have)
            self.observer("segment_map", start + have, mapped, pool.stream)
        found = self._starts.pop(start)
        del pool.keys[bisect_left(pool.keys, found << SHIFT | start)]
        return start, found

    def _take_out(self, pool: Pool, address: int, size: int) -> None:
        """Removes a block from the free ones."""
        del pool.keys[bisect_left(pool.keys, size << SHIFT | address)]
        del self._starts[address]
        del self._ends[address + size]

    def _unmap(self, pool: Pool, segments: ExpandableSegments, address: int, size: int) -> None:
        """Unmaps the granules that lie wholly inside a free block (`unmap_block`)."""
        start, end = segments.inner(address, size)
        if start >= end:
            return
        self._take_out(pool, address, size)
        for left, right in ((address, start), (end, address + size)):
            if left < right:
                self._starts[left] = right - left
                self._ends[right] = left
                insort(pool.keys, (right - left) << SHIFT | left)
        segments.unmap(start, end - start)
        self.reserved_bytes -= end - start
        self.observer("segment_unmap", start, end - start, pool.stream)
