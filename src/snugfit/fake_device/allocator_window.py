"""A window through which one call is watched: every block that torch's CPU allocator gave and took back, in order.

torch's own profiler reports the blocks, asked for memory alone. Opening and closing a window costs about 0.4 ms, so every
operator can have one of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from snugfit import private_torch


class Block(NamedTuple):
    """One event of the allocator."""

    nbytes: int
    """Bytes given, negative for bytes taken back."""
    address: int
    """Where the block lies."""


def watched(run: Callable[[], Any]) -> tuple[Any, list[Block]]:
    """Runs a function and returns what the CPU allocator did meanwhile.

    Args:
        run: The function.

    Returns:
        What it returned, and the events in order.
    """
    private_torch.start_allocator_events()
    try:
        result = run()
    finally:
        events = private_torch.stop_allocator_events()
    return result, [Block(*event) for event in events]
