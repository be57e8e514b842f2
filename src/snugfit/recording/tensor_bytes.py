"""Memory without a caching allocator: every tensor counts with its own bytes. So it is counted on the CPU.

Host memory comes from the C library, which rounds and caches as it likes; what a run needs there is stated as the bytes
of its tensors, and measured the same way (`measure/cpu.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from snugfit.recording.allocator import AllocatorConfig, CachingAllocator, OutOfMemory
from snugfit.recording.held_blocks import Block, Segment


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TensorBytes(AllocatorConfig):
    """The allocator options for no caching and no rounding."""


class TensorCounter(CachingAllocator):
    """Takes the place of the caching allocator, and only counts."""

    __slots__ = ("_next", "_sizes")

    def __init__(self, config: AllocatorConfig | None = None, capacity_bytes: int | None = None) -> None:
        """Starts empty; `config` is only kept for whoever asks."""
        super().__init__(config, capacity_bytes)
        self._sizes: dict[int, int] = {}
        self._next = 0

    def malloc(self, nbytes: int, stream: int = 0) -> int:
        """Counts a request (the stream means nothing) and returns an id; raises `OutOfMemory` over capacity."""
        total = self.allocated_bytes + nbytes
        if total > self.capacity_bytes:
            self.refused_bytes = total
            raise OutOfMemory(f"needs {nbytes} more bytes at {self.allocated_bytes} reserved")
        self._next += 1
        self._sizes[self._next] = nbytes
        self.allocated_bytes = self.reserved_bytes = self.requested_bytes = total
        if total > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.peak_reserved_bytes = total
        return self._next

    def free(self, block: int) -> None:
        """Counts a release."""
        self.allocated_bytes -= self._sizes.pop(block)
        self.reserved_bytes = self.requested_bytes = self.allocated_bytes

    def empty_cache(self) -> None:
        """Does nothing: nothing is cached."""

    def block_bytes(self, block: int) -> int:
        """Returns what was asked for."""
        return self._sizes[block]

    def segments(self) -> list[Segment]:
        """Returns one segment that holds everything."""
        return [Segment(0, self.allocated_bytes, 0, False)] if self._sizes else []

    def blocks(self, segment: Segment) -> list[Block]:
        """Returns a block for each live id; ids stand for addresses."""
        return [Block(key, size, size, True) for key, size in self._sizes.items()]


def allocator_for(
    config: AllocatorConfig | None,
    capacity_bytes: int | None,
    observer: Callable[[str, int, int, int], None] | None = None,
) -> CachingAllocator:
    """Returns an empty allocator for some options; `TensorBytes()` asks for plain counting."""
    if isinstance(config, TensorBytes):
        return TensorCounter(config, capacity_bytes)
    return CachingAllocator(config, capacity_bytes, observer=observer)
