"""Where a plan is for: a card of the table, this machine's GPU, or its processor; and the budget there by default."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from snugfit.contexts import measured
from snugfit.device_kinds import CPU, CUDA, KINDS, default_device, free_bytes
from snugfit.devices import Device, device_named
from snugfit.errors import InputError, argument, option, warn
from snugfit.fake_device.personality import Personality
from snugfit.planner.probe import Place, no_speeds
from snugfit.recording.generations import GENERATIONS
from snugfit.units import format_bytes, parse_bytes

_DRIVER = Path("/proc/driver/nvidia")


def place_for(device: str | Device | None) -> Place:
    """Returns the place that a name stands for (`local`, `cpu`, a card); None: this machine's GPU, or its processor."""
    if device == "all":
        raise InputError(
            f"a plan is for one device; give {option('device')} a name of the table (snugfit devices), local or cpu."
        )
    card = device if isinstance(device, Device) else device_named(_default() if device is None else device)
    if card.name == "cpu":
        from snugfit.operators.host_speeds import host_speeds

        return Place(card=card, personality=Personality(kind=CPU), speeds=host_speeds())
    if card.bytes_only or not card.flops or card.memory_bandwidth is None:
        raise no_speeds(card)
    return Place(card=card, personality=Personality(capability=card.compute_capability or GENERATIONS[0]))


def _default() -> str:
    """The GPU of this machine, or its processor; torch is asked only where there is a driver."""
    if not _DRIVER.exists():
        return "cpu"
    return KINDS[default_device()].planned or CPU


def budget_for(place: Place, budget: str | int | None) -> tuple[Place, int]:
    """Returns the budget in bytes; for all of this machine's GPU, what is free, and a place with nothing to take off.

    `budget`: as typed, in bytes, or None for all there is: a card's memory, of this machine's GPU what is free.
    """
    card = place.card
    if budget is not None:
        size = parse_bytes(budget, what="budget")
        if card.memory_bytes is not None and size > card.memory_bytes:
            warn(
                f"the budget of {format_bytes(size)} is more than {card.name} has; planned for its "
                f"{format_bytes(card.memory_bytes)}.",
            )
            size = card.memory_bytes
        return place, size
    if card.memory_bytes is None:
        raise InputError(f"give a budget: a cpu has no memory of its own, for example {argument('budget', '8GiB')}.")
    if card.name != "local":
        return place, card.memory_bytes
    import torch

    # CUDA's context is there as soon as this can be asked, so it is not taken off a second time.
    free = free_bytes(torch.device(CUDA))
    return dataclasses.replace(place, card=dataclasses.replace(card, context=measured(0))), free
