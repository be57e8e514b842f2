"""What torch tells of a card's memory, told of a pretend one: peaks, free bytes, limits, and a snapshot for the viewer."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from snugfit.pretend_card.memory import CardMemory
from snugfit.recording.generations import Capability
from snugfit.recording.snapshot import held_segments


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Properties:
    """What `get_device_properties` returns."""

    name: str
    """The card's name."""
    total_memory: int
    """All of its bytes, those of the CUDA context included."""
    major: int
    """First number of its compute capability."""
    minor: int
    """Second number."""


class CardStatistics:
    """Functions of `torch.cuda` about one card; their arguments and results are torch's."""

    def __init__(self, memory: CardMemory, *, total_bytes: int | None, name: str, capability: Capability) -> None:
        """Takes the memory to report on.

        `total_bytes`: all bytes of the card; None: what this process can have.
        """
        self._allocator = memory.allocator
        self._capacity_bytes = self._allocator.capacity_bytes
        self._total_bytes = self._capacity_bytes if total_bytes is None else total_bytes
        self._fraction = 1.0
        self._properties = Properties(
            name=name, total_memory=self._total_bytes, major=capability[0], minor=capability[1]
        )

    def get_device_properties(self, device: Any = None) -> Properties:
        """Returns name, bytes and compute capability."""
        return self._properties

    def get_device_name(self, device: Any = None) -> str:
        """Returns the card's name."""
        return self._properties.name

    def memory_allocated(self, device: Any = None) -> int:
        """Returns bytes of live blocks."""
        return self._allocator.allocated_bytes

    def memory_reserved(self, device: Any = None) -> int:
        """Returns bytes of segments."""
        return self._allocator.reserved_bytes

    def max_memory_allocated(self, device: Any = None) -> int:
        """Returns the most bytes of live blocks since the peaks began."""
        return self._allocator.peak_allocated_bytes

    def max_memory_reserved(self, device: Any = None) -> int:
        """Returns the most bytes of segments since the peaks began."""
        return self._allocator.peak_reserved_bytes

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Resets the peaks to what is allocated now."""
        self._allocator.peak_allocated_bytes = self._allocator.allocated_bytes
        self._allocator.peak_reserved_bytes = self._allocator.reserved_bytes

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        """Returns the allocator's numbers under torch's names, as far as it counts them."""
        allocator = self._allocator
        return {
            "allocated_bytes.all.current": allocator.allocated_bytes,
            "allocated_bytes.all.peak": allocator.peak_allocated_bytes,
            "reserved_bytes.all.current": allocator.reserved_bytes,
            "reserved_bytes.all.peak": allocator.peak_reserved_bytes,
            "requested_bytes.all.current": allocator.requested_bytes,
            "num_alloc_retries": allocator.retries,
        }

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Returns free and total bytes, as the driver counts them."""
        return self._capacity_bytes - self._allocator.reserved_bytes, self._total_bytes

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None:
        """Limits this process to a part of the card's bytes."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: [0, 1]")
        self._fraction = fraction
        self._allocator.capacity_bytes = min(self._capacity_bytes, int(self._total_bytes * fraction))

    def get_per_process_memory_fraction(self, device: Any = None) -> float:
        """Returns that part."""
        return self._fraction

    def memory_snapshot(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        """Returns the segments and blocks that are held, as torch's snapshot lists them."""
        return held_segments(self._allocator)

    def changes(self, backend: Any) -> list[tuple[Any, str, Any]]:
        """Returns what these functions replace: in torch, and in the module that stands for CUDA."""
        names = [name for name in vars(CardStatistics) if not name.startswith("_") and name != "changes"]
        of_torch = [
            (owner, name) for owner in (torch.cuda, torch.cuda.memory) for name in names if hasattr(owner, name)
        ]
        return [(owner, name, getattr(self, name)) for owner, name in (*((backend, one) for one in names), *of_torch)]
