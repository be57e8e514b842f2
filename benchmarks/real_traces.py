"""Memory histories that torch recorded on real cards, replayed by our allocator: does it grow where the real one grew?

A history seldom begins on an empty card, so it is walked backwards from the state at its end, which torch stores too, to
the state at its beginning; the allocator begins there. It is then given what was asked for and given back, and nothing
else: each block it chooses, and each segment it asks for, is compared with what was recorded.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from bisect import bisect_right, insort
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from snugfit.recording.allocator import AllocatorConfig, CachingAllocator, Pool
from snugfit.recording.allocator_sizes import (
    LARGE_SEGMENT_BYTES,
    MIN_BLOCK_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
)
from snugfit.recording.segments import SHIFT, ExpandableSegments


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """What one history showed."""

    requests: int
    """Blocks that were asked for."""
    same_block: int
    """Those that were given the recorded address."""
    segments: int
    """Times that the recorded allocator asked the card for a segment."""
    same_reserved: int
    """Requests after which as many bytes were reserved as recorded."""
    peak_reserved_bytes: int
    """The most that was reserved, as recorded."""
    predicted_peak_reserved_bytes: int
    """The same by the allocator."""


@dataclasses.dataclass(slots=True)
class State:
    """Segments and blocks of a card at one time."""

    segments: dict[int, tuple[int, int, bool]]
    """First byte -> size, stream, and whether it belongs to the small pool."""
    live: dict[int, int]
    """First byte -> size of the block, or what was asked for where that is all that is known."""

    def before(self, events: list[dict[str, Any]]) -> State:
        """Returns the state in which a history began that ended in this one."""
        segments, live = dict(self.segments), dict(self.live)
        for event in reversed(events):
            address = event["addr"]
            if event["action"] == "alloc":
                live.pop(address)
            elif event["action"] == "free_completed":
                live[address] = event["size"]
            elif event["action"] == "segment_alloc":
                segments.pop(address)
            elif event["action"] == "segment_free":
                segments[address] = (event["size"], event["stream"], event["size"] == SMALL_SEGMENT_BYTES)
        return State(segments, live)


def read(path: Path) -> tuple[State, list[dict[str, Any]], bool]:
    """Returns the state at the end, the events in order, and whether segments could grow."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        snapshot = json.load(file)
    end = State({}, {})
    for segment in snapshot["segments"]:
        end.segments[segment["address"]] = (
            segment["total_size"],
            segment["stream"],
            segment["segment_type"] == "small",
        )
        end.live.update({one["address"]: one["size"] for one in segment["blocks"] if one["state"].startswith("active")})
    columns = max(snapshot["device_traces"], key=lambda one: len(one.get("action", ())), default={})
    names = ("action", "addr", "size", "stream")
    events = [
        dict(zip(names, values, strict=True)) for values in zip(*(columns.get(n, ()) for n in names), strict=True)
    ]
    return end, events, bool((snapshot["allocator_settings"] or {}).get("expandable_segments"))


def replay(end: State, events: list[dict[str, Any]], expandable: bool) -> Replayed:
    """Gives the allocator what a history asked for, from the state in which it began."""
    start = end.before(events)
    if not expandable:
        _lengthen(start, events)
    allocator = CachingAllocator(AllocatorConfig(expandable_segments=expandable))
    reserved = _begin(allocator, start)
    peak = reserved
    starts = sorted(start.segments)
    blocks = {address: _place(starts, address) for address in start.live}
    requests = same_block = segments = same_reserved = 0
    for event in events:
        action, address, size = event["action"], event["addr"], event["size"]
        if action == "segment_alloc":
            segments += 1
            reserved += size
            peak = max(peak, reserved)
            insort(starts, address)
            allocator._next_address = _place(starts, address)
        elif action == "segment_free":
            reserved -= size
            starts.remove(address)
            allocator.empty_cache()
        elif action == "free_completed":
            allocator.free(blocks.pop(address))
        elif action == "alloc":
            blocks[address] = allocator.malloc(size, event["stream"])
            requests += 1
            same_block += blocks[address] == _place(starts, address)
            same_reserved += allocator.reserved_bytes == reserved
    return Replayed(
        requests=requests,
        same_block=same_block,
        segments=segments,
        same_reserved=same_reserved,
        peak_reserved_bytes=peak,
        predicted_peak_reserved_bytes=allocator.peak_reserved_bytes,
    )


def _place(starts: list[int], address: int) -> int:
    """Returns where a byte lies with room between the segments, which the allocator keeps apart by their addresses."""
    return address + starts[bisect_right(starts, address) - 1]


def _lengthen(state: State, events: list[dict[str, Any]]) -> None:
    """Finds blocks that are longer than what was asked for, by where others begin behind them."""
    starts = sorted(state.segments)
    living = [one for one in sorted(state.live) if not state.segments[starts[bisect_right(starts, one) - 1]][2]]
    for event in events:
        address = event["addr"]
        at = bisect_right(living, address) - 1
        if event["action"] == "free_completed" and at >= 0 and living[at] == address:
            del living[at]
        elif event["action"] == "alloc" and at >= 0:
            block = living[at]
            if 0 < address - block - _rounded(state.live[block]) <= SMALL_BYTES:
                state.live[block] = address - block


def _rounded(size: int) -> int:
    return -(-size // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


def _begin(allocator: CachingAllocator, state: State) -> int:
    """Puts an allocator without segments into a state; returns the bytes reserved."""
    live = sorted(state.live)
    position = 0
    for address, (size, stream, small) in sorted(state.segments.items()):
        pools = allocator._small if small else allocator._large
        pool = pools.setdefault(stream, Pool(stream, small))
        if allocator.config.expandable_segments:
            pool.expandable = ExpandableSegments(SMALL_SEGMENT_BYTES if small else LARGE_SEGMENT_BYTES)
            pool.expandable.add(2 * address, 2 * size)
            pool.expandable.map(2 * address, size)
        else:
            allocator._segments[2 * address] = (size, pool)
        at = address
        while at < address + size:
            inside = position < len(live) and live[position] < address + size
            following = live[position] if inside else address + size
            if at < following:
                _free(allocator, pool, address + at, following - at)
                at = following
                continue
            position += 1
            following = live[position] if position < len(live) and live[position] < address + size else address + size
            length = _rounded(state.live[at])
            # What is left of a block is not split off in the large pool while it is small.
            if not small and not pool.expandable and following - at - length <= SMALL_BYTES:
                length = following - at
            allocator._live[address + at] = (length, state.live[at], pool)
            allocator.allocated_bytes += length
            at += length
    allocator.reserved_bytes = allocator.peak_reserved_bytes = sum(size for size, *_ in state.segments.values())
    return allocator.reserved_bytes


def _free(allocator: CachingAllocator, pool: Pool, start: int, size: int) -> None:
    allocator._starts[start] = size
    allocator._ends[start + size] = start
    insort(pool.keys, size << SHIFT | start)


def histories(folder: Path) -> Iterator[tuple[str, Replayed]]:
    """Yields (name, what it showed) of each history of a folder that has events."""
    for path in sorted(folder.glob("*.json.gz")):
        end, events, expandable = read(path)
        if events:
            yield path.name.removesuffix(".json.gz"), replay(end, events, expandable)
