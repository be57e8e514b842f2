"""What a card says of itself (`torch.cuda.get_device_properties`), as far as code on the way of a training step asks."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

from snugfit.recording.generations import Capability
from snugfit.units import MIB

NAME = "snugfit simulated card"
ROOM_BYTES = 1 << 40
"""More than any script plans with."""
_L2_MIB = {(7, 0): 6, (7, 5): 4, (8, 0): 40, (8, 6): 6, (8, 9): 72, (9, 0): 50, (10, 0): 126, (12, 0): 96}
"""Compute capability -> L2 cache of a card in wide use (V100, T4, A100, RTX 3090, RTX 4090, H100, B200, RTX 5090), from
NVIDIA's descriptions of their architectures. timm's optimizers cut their lists by it."""


def card_properties(capability: Capability) -> SimpleNamespace:
    """Returns the properties of a card."""
    major, minor = capability
    return SimpleNamespace(
        name=NAME,
        major=major,
        minor=minor,
        total_memory=ROOM_BYTES,
        multi_processor_count=108,
        L2_cache_size=_L2_MIB.get(capability, _L2_MIB[9, 0]) * MIB,
        max_threads_per_multi_processor=1536,
        warp_size=32,
        uuid="GPU-00000000-0000-0000-0000-000000000000",
    )


def memory_statistics(now: int, most: int, kept: int) -> dict[str, int]:
    """Returns `torch.cuda.memory_stats()` of a card with so many bytes in tensors, of which the allocator keeps `kept`."""
    found = defaultdict[str, int](int)
    for kind in ("allocated", "reserved", "active", "requested"):
        found[f"{kind}_bytes.all.current"] = kept if kind == "reserved" else now
        found[f"{kind}_bytes.all.peak"] = most
    return found
