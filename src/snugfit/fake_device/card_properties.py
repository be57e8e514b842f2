"""What a card says of itself (`torch.cuda.get_device_properties`), as far as code on the way of a training step asks."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from snugfit.attributes import Change
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


def names_itself(name: str, memory_bytes: int) -> list[Change]:
    """Returns the replacements by which the card says whose it is; scripts choose batches and kernels by that.

    What is free stays more than any script plans with: a model that does not fit is to be seen whole.
    """
    import torch

    from snugfit.fake_device.accelerator import backend

    def properties(device: Any = None) -> Any:
        found = backend.of_card(card_properties)
        found.name, found.total_memory = name, memory_bytes
        return found

    answers = {"get_device_name": lambda device=None: name, "get_device_properties": properties}
    return [(owner, asked, answer) for owner in (torch.cuda, backend) for asked, answer in answers.items()]


def memory_statistics(now: int, most: int) -> dict[str, int]:
    """Returns `torch.cuda.memory_stats()` of a card with so many bytes in tensors."""
    found = defaultdict[str, int](int)
    for kind in ("allocated", "reserved", "active", "requested"):
        found[f"{kind}_bytes.all.current"], found[f"{kind}_bytes.all.peak"] = now, most
    return found
