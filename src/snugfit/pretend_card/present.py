"""Puts a pretend card into this process, where torch then finds it as it would find a real one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from snugfit.fake_device import registration
from snugfit.fake_device.personality import Personality
from snugfit.fake_device.translate import cuda_means_sim
from snugfit.pretend_card.card import PretendCard
from snugfit.recording.allocator import AllocatorConfig
from snugfit.recording.generations import GENERATIONS, Capability


@contextmanager
def card_present(
    capacity_bytes: int | None,
    *,
    capability: Capability = GENERATIONS[0],
    config: AllocatorConfig | None = None,
    seed: int = 0,
    eager: bool = False,
) -> Iterator[PretendCard]:
    """Gives this process a card while the context is open; `cuda` then means that card.

    Args:
        capacity_bytes: What the card has for this process's segments; None for no end.
        capability: Its compute capability, by which kernels are chosen.
        config: The options of its allocator; None: torch's defaults.
        seed: Of the order in which streams go on, and of the numbers that operators draw.
        eager: Whether operators are carried out at once, in the order in which the host asks for them.

    Yields:
        The card; `personality.device` is where its tensors are, `memory.allocator` what they take.
    """
    registration.register()
    card = PretendCard(Personality(capability=capability), capacity_bytes, config, seed=seed, eager=eager)
    with card, cuda_means_sim():
        yield card
