"""Replays of one recording, each made once, and the smallest card on which it goes through.

A run is recorded once and replayed often, because the answer depends on the card: a card that gets full gives cached
segments back before it fails, so the reserved peak of an unlimited replay is more than a run needs. `Replays.fits` therefore
replays at the card's size, and `Replays.smallest_bytes` is the smallest size on which the run goes through.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from snugfit.recording.allocator import AllocatorConfig, CachingAllocator, OutOfMemory
from snugfit.recording.allocator_sizes import ROUND_LARGE_BYTES
from snugfit.recording.replay import Replay, replay
from snugfit.recording.tensor_bytes import TensorBytes, allocator_for
from snugfit.recording.trace import ALLOC, EMPTY_CACHE, FREE, RESIZE, WORKSPACE, Trace

if TYPE_CHECKING:
    from snugfit.devices import Device


class Requests:
    """What a recording asks of the device's allocator and nothing else, to be played again and again."""

    def __init__(self, trace: Trace) -> None:
        """Goes through the events once."""
        steps: list[tuple[int, int]] = []  # bytes and stream; ~n: the block of request n is given back; 0: the cache
        held: dict[int, int] = {}  # living storage -> number of its request
        requests = 0
        for kind, subject, value in zip(trace.kinds, trace.subjects, trace.values, strict=True):
            if kind == FREE:
                if subject in held:
                    steps.append((~held.pop(subject), 0))
            elif kind == EMPTY_CACHE:
                steps.append((0, 0))
            elif kind == WORKSPACE:
                work = trace.workspaces[subject]
                if work.nbytes:
                    steps += (work.nbytes, work.stream), (~requests, 0)
                    requests += 1
            elif kind in (ALLOC, RESIZE):
                row = trace.storages[subject]
                if row.place != "device":
                    continue
                old = held.pop(subject, None) if kind == RESIZE else None
                nbytes = value if kind == RESIZE else row.nbytes
                if nbytes:
                    steps.append((nbytes, row.stream))
                    held[subject] = requests
                    requests += 1
                if old is not None:
                    steps.append((~old, 0))
        self._steps = steps

    def play(self, allocator: CachingAllocator) -> None:
        """Asks an empty allocator for all of it; raises `OutOfMemory` when the card is full."""
        malloc, free = allocator.malloc, allocator.free
        blocks: list[int] = []
        for nbytes, stream in self._steps:
            if nbytes > 0:
                blocks.append(malloc(nbytes, stream))
            elif nbytes:
                free(blocks[~nbytes])
            else:
                allocator.empty_cache()


class Replays:
    """Replays of one recording, each made once."""

    def __init__(self, trace: Trace, config: AllocatorConfig | None = None, *, within: float = 0.0) -> None:
        """Has played nothing yet.

        `within`: `smallest_bytes` may be too large by this share of itself, which saves replays.
        """
        self._trace, self._config, self._within = trace, config, within
        self._known: list[tuple[int, int, bool]] = []
        """Capacities, from the first to before the second, at which the very same happens, and whether it goes through."""

    @functools.cached_property
    def _requests(self) -> Requests:
        return Requests(self._trace)

    @functools.cached_property
    def unlimited(self) -> Replay:
        """The replay on a card without limit."""
        return replay(self._trace, self._config)

    @functools.cached_property
    def smallest_bytes(self) -> int:
        """The smallest size of card, the context apart, on which the recording goes through: a multiple of 2 MiB.

        A card that gets full frees cached segments first, so this is at most the reserved peak of an unlimited replay. It
        is found by bisection over replays, in steps of the smallest segment. Where tensors are counted (`TensorBytes`) it
        is what they take. Sizes in between may fail now and then
        (another block is chosen); this one does not.
        """
        if isinstance(self._config, TensorBytes):  # there are no segments, and the host's memory is the device's
            return self.unlimited.peak_with_host_bytes
        step = ROUND_LARGE_BYTES
        # From what is certainly too little (less than what lives at once) to what is certainly enough.
        low = self.unlimited.peak_requested_bytes // step - 1
        high = -(-self.unlimited.peak_reserved_bytes // step)
        while high - low > max(1, self._within * high):
            middle = (low + high) // 2
            if self._goes_through(middle * step):
                high = middle
            else:
                low = middle
        return high * step

    def _goes_through(self, capacity_bytes: int) -> bool:
        if capacity_bytes < self.unlimited.peak_requested_bytes:  # less than what lives at once
            return False
        for least, more, goes_through in self._known:
            if least <= capacity_bytes < more:
                return goes_through
        allocator = allocator_for(self._config, capacity_bytes)
        try:
            self._requests.play(allocator)
        except OutOfMemory:
            found = False
        else:
            found = True
        if not allocator.config.expandable_segments:  # whose address ranges are as long as the card is large
            # A card that would have refused and served the same requests for segments does the same throughout.
            self._known.append((allocator.peak_reserved_bytes, allocator.refused_bytes, found))
        return found

    def fits(self, device: Device) -> tuple[bool, int | None]:
        """Returns whether the recording goes through on a card, its CUDA context taken off, and how much room is left.

        The room is the bytes left over the smallest size that suffices: negative when it does not fit, None for a
        device without a limit of its own (`cpu`).
        """
        if device.memory_bytes is None:
            return True, None
        capacity = device.memory_bytes - device.context_bytes
        if capacity >= self.unlimited.peak_reserved_bytes or self._goes_through(capacity):
            return True, max(capacity - self.smallest_bytes, 0)
        needed = self.smallest_bytes if self.smallest_bytes > capacity else self.unlimited.peak_reserved_bytes
        return False, capacity - needed
