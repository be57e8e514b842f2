"""What NCCL takes on a card for itself: read off public measurements, or unknown.

The readings stand in `nccl.yaml`, with what they depend on. It comes on top of a process's context and of what torch holds.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from snugfit.contexts import ContextSource, without_size
from snugfit.devices import Device
from snugfit.units import parse_bytes
from snugfit.yaml_files import read_table

_READINGS: dict[str, dict[int, dict[str, str]]] = read_table("nccl.yaml")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NcclMemory:
    """What one communicator takes on each card of its group."""

    typical_bytes: int | None
    """The median of the readings; None where there are none that count."""
    range_bytes: tuple[int, int] | None
    """The smallest reading and the largest."""
    source: ContextSource | None
    """`published`: read on such cards; `assumed`: on other cards with NVLink; None: unknown."""
    where: str
    """Where the readings stand, or why there is none."""


def nccl_memory(card: Device, ranks: int) -> NcclMemory:
    """Returns what a communicator of so many ranks takes on a card; one alone needs none."""
    if ranks <= 1:
        return NcclMemory(typical_bytes=0, range_bytes=(0, 0), source="published", where="one rank has no communicator")
    if card.bytes_only:
        return _unknown(f"{card.name} has no NCCL")
    if not (card.peer_link or "").startswith("NVLink"):
        return _unknown(
            "nobody has read it on cards without NVLink; it is less than on NVLink, as there are fewer channels"
        )
    own = without_size(card.name)
    found = _readings([own], ranks)
    source: ContextSource = "published" if found else "assumed"
    found = found or _readings(_READINGS, ranks)
    sizes = [int(parse_bytes(size)) for size, _ in found]
    return NcclMemory(
        typical_bytes=round(statistics.median(sizes)),
        range_bytes=(min(sizes), max(sizes)),
        source=source,
        where="; ".join(where for _, where in found),
    )


def among(card: Device, groups: Sequence[int]) -> Device:
    """Returns a card on which NCCL has taken its memory for groups of these sizes."""
    if card.context is None:
        return card
    taken = [nccl_memory(card, ranks).typical_bytes for ranks in groups if ranks > 1]
    known = [one for one in taken if one is not None]
    return dataclasses.replace(card, nccl_bytes=sum(known) if len(known) == len(taken) else None)


def _unknown(why: str) -> NcclMemory:
    return NcclMemory(typical_bytes=None, range_bytes=None, source=None, where=why)


def _readings(names: Iterable[str], ranks: int) -> list[tuple[str, str]]:
    """Readings of some cards; two ranks apart, because larger groups have one more connection a channel."""
    return [
        reading
        for name in names
        for read, readings in _READINGS.get(name, {}).items()
        if (read == 2) == (ranks == 2)
        for reading in readings.items()
    ]
