"""What CUDA takes on a card for itself: read off public messages, or typical of the card's generation.

The readings stand in `contexts.yaml`, which also says what counts as one. A card that nobody read gets what cards of its
generation take a multiprocessor, times those it has: most of a context is room that CUDA sets aside for each of them.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Mapping
from typing import Literal

from snugfit.units import parse_bytes
from snugfit.yaml_files import read_table

ContextSource = Literal["measured", "published", "assumed"]
"""Counted on the very card, read on such cards by others, or typical of the card's generation."""

_ROWS = read_table("contexts.yaml")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What CUDA takes on a card."""

    typical_bytes: int
    """The median of the readings."""
    range_bytes: tuple[int, int]
    """The smallest reading and the largest."""
    source: ContextSource
    """Whether the readings are of this card."""

    @property
    def above_typical_bytes(self) -> int:
        """By how much the largest reading is above the median."""
        return self.range_bytes[1] - self.typical_bytes


def without_size(name: str) -> str:
    """Returns the name of a card without its memory, which does not change the context."""
    return re.sub(r"-\d+gb$", "", name)


def measured(size_bytes: int) -> Context:
    """Returns the context of a card on which it was measured."""
    return Context(typical_bytes=size_bytes, range_bytes=(size_bytes, size_bytes), source="measured")


def readings_of(name: str) -> Mapping[str, str]:
    """Returns a card's readings as the messages had them -> where they are published."""
    readings: Mapping[str, str] = _ROWS.get(without_size(name), {}).get("readings", {})
    return readings


def context_of(name: str, capability: tuple[int, int] | None, sm_count: int | None) -> Context:
    """Returns the context of a card, from readings of that card where there are some.

    `capability`: its compute capability; None or one that nobody read: all generations count.
    `sm_count`: its multiprocessors; None: the readings count as they are.
    """
    own = [_size(reading) for reading in readings_of(name)]
    if own:
        return _context(own, "published")
    cards = [row for row in _ROWS.values() if "sm_count" in row]
    alike = [row for row in cards if tuple(row["compute_capability"]) == capability] or cards
    return _context(
        [
            _size(reading) * (1 if sm_count is None else sm_count / row["sm_count"])
            for row in alike
            for reading in row["readings"]
        ],
        "assumed",
    )


def _size(reading: str) -> float:
    in_use, *held_by_torch = map(parse_bytes, reading.split(" - "))
    return in_use - sum(held_by_torch)


def _context(sizes: list[float], source: ContextSource) -> Context:
    return Context(
        typical_bytes=round(statistics.median(sizes)),
        range_bytes=(round(min(sizes)), round(max(sizes))),
        source=source,
    )
