"""Memory that an operator takes and gives back inside itself, and when: before, between or after its results."""

from __future__ import annotations

from typing import NamedTuple

AFTER_ALL = 1 << 30
"""More results than any operator has."""


class InnerBytes(NamedTuple):
    """What is alive inside an operator at one moment."""

    nbytes: int
    """Bytes of all inner blocks that are alive at this moment."""
    results: int
    """How many of the operator's new results exist by then."""
