"""The sizes of the CUDA caching allocator: what blocks are rounded to, and how large the segments are that they come from.

Source: `c10/cuda/CUDACachingAllocator.cpp` of torch
(https://github.com/pytorch/pytorch/blob/eb42ad6eca0ce61e7c581212b4bf32f991425571/c10/cuda/CUDACachingAllocator.cpp). Checked
against the headers that torch 2.15 ships: five of the sizes are unchanged there, and the large segment became an option.
"""

from __future__ import annotations

from snugfit.units import MIB

MIN_BLOCK_BYTES = 512
"""Sizes are multiples of this (`kMinBlockSize`)."""
SMALL_BYTES = 1 * MIB
"""The largest request that the small pool serves (`kSmallSize`)."""
SMALL_SEGMENT_BYTES = 2 * MIB
"""Segments of the small pool, and the granule of its expandable segments (`kSmallBuffer`)."""
LARGE_SEGMENT_BYTES = 20 * MIB
"""Segments that requests between 1 and 10 MiB share, and the granule of expandable segments (`kLargeBuffer`)."""
MIN_LARGE_BYTES = 10 * MIB
"""From here on a request gets a segment of its own size (`kMinLargeAlloc`)."""
ROUND_LARGE_BYTES = 2 * MIB
"""Such a segment's size is a multiple of this (`kRoundLarge`)."""


def segment_bytes(size: int) -> int:
    """Returns the size of the segment that is made for a block of a rounded size (`get_allocation_size`)."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < MIN_LARGE_BYTES:
        return LARGE_SEGMENT_BYTES
    return (size + ROUND_LARGE_BYTES - 1) & -ROUND_LARGE_BYTES
