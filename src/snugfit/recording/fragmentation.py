"""What the caching allocator keeps beside the tensors, and whether emptying its cache once would help.

A segment that was made for one tensor and is now half used by another cannot go back to the card. Where that is a
noticeable share of what is reserved, the recording is replayed with the cache emptied once, after the model stands or after
the first step, and with expandable segments. Both are predictions of the same replay that says what fits; on a card that
gets full the allocator empties its cache by itself, which waits for the card, and which `fits` counts already.
"""

from __future__ import annotations

import dataclasses

from snugfit.recording.allocator import AllocatorConfig
from snugfit.recording.replay import Player, Replay
from snugfit.recording.trace import Trace

NOTICEABLE_SHARE = 0.1
"""Share of the reserved bytes from which on fragmentation is looked into."""
WORTH_SHARE = 0.02
"""What lowers the reserved bytes by less than this share is not advised."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Fragmentation:
    """Reserved memory that tensors do not need, and what would lower it."""

    share: float
    """Share of the reserved peak that was never in tensors at a time."""
    empty_after: str | None
    """Where emptying the cache once saves most: `build` or `first step`; None where that saves nothing worth it."""
    emptied_bytes: int
    """How much less is reserved from then on."""
    expandable_bytes: int
    """How much lower the reserved peak is with expandable segments; 0 where they save nothing worth it."""


def fragmentation(trace: Trace, played: Replay) -> Fragmentation | None:
    """Returns what is known of fragmentation in an unlimited replay; None below `NOTICEABLE_SHARE`."""
    reserved = played.peak_reserved_bytes
    unused = reserved - played.peak_allocated_bytes
    if not reserved or unused < NOTICEABLE_SHARE * reserved:
        return None
    least = WORTH_SHARE * reserved
    ways = [(reserved - _reserved_after(trace, event), name) for name, event in _moments(trace)]
    saved, after = max(ways, key=lambda way: way[0], default=(0, ""))  # of two that save as much the earlier
    expandable = Player(trace, AllocatorConfig(expandable_segments=True))
    expandable.play()
    grown = reserved - expandable.allocator.peak_reserved_bytes
    return Fragmentation(
        share=unused / reserved,
        empty_after=after if saved >= least else None,
        emptied_bytes=saved if saved >= least else 0,
        expandable_bytes=grown if grown >= least else 0,
    )


def _moments(trace: Trace) -> list[tuple[str, int]]:
    """The last events before the first forward pass, and before the second step."""
    begun = next((mark.event for mark in trace.marks() if mark.phase == "forward" and mark.entered), 0)
    second = trace.step_events(1)[0]
    found = [("build", begun - 1), ("first step", second - 1)]
    return [(name, event) for name, event in found if 0 <= event < len(trace) - 1]


def _reserved_after(trace: Trace, event: int) -> int:
    """The most bytes that are reserved after the cache is emptied behind some event."""
    player = Player(trace)
    player.play(through=event)
    player.allocator.empty_cache()
    player.allocator.peak_reserved_bytes = player.allocator.reserved_bytes
    player.play()
    return player.allocator.peak_reserved_bytes
