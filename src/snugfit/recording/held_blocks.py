"""What an allocator lists of the memory that it holds: segments, and the blocks in them."""

from __future__ import annotations

from typing import NamedTuple


class Block(NamedTuple):
    """A block, as `CachingAllocator.blocks` lists it."""

    address: int
    """Its first byte."""
    size_bytes: int
    """Its size, rounded."""
    requested_bytes: int
    """What was asked for; 0 when it is free."""
    live: bool
    """Whether somebody holds it."""


class Segment(NamedTuple):
    """A segment, or one mapped stretch of an expandable segment, as `CachingAllocator.segments` shows it."""

    address: int
    """Its first byte."""
    size_bytes: int
    """Its size."""
    stream: int
    """The stream whose pool it belongs to."""
    small: bool
    """Whether it belongs to the small pool."""
