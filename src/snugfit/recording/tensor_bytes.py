"""Memory without a caching allocator: every tensor counts with its own bytes. So it is counted on the CPU.

Host memory comes from the C library, which rounds and caches as it likes; what a run needs there is stated as the bytes
of its tensors, and measured the same way (`measure/cpu.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from snugfit.recording.allocator import AllocatorConfig, Block, CachingAllocator, OutOfMemory, Segment


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TensorBytes(AllocatorConfig):
    """The options that say: no caching, no rounding."""


class TensorCounter(CachingAllocator):
    """Stands where the caching allocator stands, and only counts."""

    __slots__ = ("_next", "_sizes")

    def __init__(self, config: AllocatorConfig | None = None, capacity_bytes: int | None = None) -> None:
        """Starts empty.

        Args:
            config: Kept for who asks.
            capacity_bytes: The most bytes at a time; None for no limit.
        """
        super().__init__(config, capacity_bytes)
        self._sizes: dict[int, int] = {}
        self._next = 0

    def malloc(self, nbytes: int, stream: int = 0) -> int:
        """Counts a request.

        Args:
            nbytes: Bytes asked for.
            stream: Means nothing here.

        Returns:
            An id for `free`.

        Raises:
            OutOfMemory: When the capacity does not suffice.
        """
        total = self.allocated_bytes + nbytes
        if total > self.capacity_bytes:
            raise OutOfMemory(nbytes, self.allocated_bytes, self.allocated_bytes)
        self._next += 1
        self._sizes[self._next] = nbytes
        self.allocated_bytes = self.reserved_bytes = self.requested_bytes = total
        if total > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.peak_reserved_bytes = total
        return self._next

    def free(self, block: int) -> None:
        """Counts a release.

        Args:
            block: The id that `malloc` returned.
        """
        self.allocated_bytes -= self._sizes.pop(block)
        self.reserved_bytes = self.requested_bytes = self.allocated_bytes

    def empty_cache(self) -> None:
        """Does nothing: nothing is cached."""

    def block_bytes(self, block: int) -> int:
        """Returns what was asked for.

        Args:
            block: The id that `malloc` returned.

        Returns:
            Bytes.
        """
        return self._sizes[block]

    def segments(self) -> list[Segment]:
        """Returns one stretch of memory that holds everything."""
        return [Segment(0, self.allocated_bytes, 0, False)] if self._sizes else []

    def blocks(self, segment: Segment) -> list[Block]:
        """Returns what lives, one after the other.

        Args:
            segment: The one of `segments()`.

        Returns:
            A block for each; the ids stand for addresses.
        """
        return [Block(key, size, size, True) for key, size in self._sizes.items()]


def allocator_for(
    config: AllocatorConfig | None,
    capacity_bytes: int | None,
    observer: Callable[[str, int, int, int], None] | None = None,
) -> CachingAllocator:
    """Returns the allocator that some options ask for.

    Args:
        config: The options; `TensorBytes()` for none at all.
        capacity_bytes: The card's size; None for no limit.
        observer: Told of every change of segments, as `CachingAllocator` says.

    Returns:
        An empty allocator.
    """
    if isinstance(config, TensorBytes):
        return TensorCounter(config, capacity_bytes)
    return CachingAllocator(config, capacity_bytes, observer=observer)
