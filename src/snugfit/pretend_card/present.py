"""Puts a pretend card into this process, where torch then finds it as it would find a real one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from snugfit.attributes import Change, replaced
from snugfit.fake_device.accelerator import backend
from snugfit.fake_device.personality import Personality
from snugfit.fake_device.translate import cuda_means_sim
from snugfit.pretend_card import ranks
from snugfit.pretend_card.card import PretendCard
from snugfit.pretend_card.statistics import CardStatistics
from snugfit.private_torch.fake_tensors import FakeTensor
from snugfit.recorder import registration
from snugfit.recording.generations import GENERATIONS, Capability


@contextmanager
def card_present(
    capacity_bytes: int | None,
    *,
    capability: Capability = GENERATIONS[0],
    seed: int = 0,
    eager: bool = False,
    total_bytes: int | None = None,
    name: str = "pretend card",
) -> Iterator[PretendCard]:
    """Context in which `cuda` means a pretend card of this process.

    Yields the card: `personality.device` is where its tensors are, `memory.allocator` what they take.

    `capacity_bytes`: what the card has for this process's segments; None for no end.
    `eager`: whether operators are carried out at once, in the order in which the host asks for them.
    `total_bytes`: all bytes of the card, what CUDA takes for itself included; None: the capacity.
    """
    registration.register()
    ranks.register()
    card = PretendCard(Personality(capability=capability), capacity_bytes, seed=seed, eager=eager)
    statistics = CardStatistics(card.memory, total_bytes=total_bytes, name=name, capability=capability)
    with card, cuda_means_sim(), replaced([*statistics.changes(backend), *_as_on_a_card(card)]):
        yield card


def _as_on_a_card(card: PretendCard) -> list[Change]:
    """Replaces what would tell this card's tensors from a real one's."""

    def set_sync_debug_mode(debug_mode: int | str) -> None:
        card.sync_debug_mode = debug_mode

    changes: list[Change] = [
        (torch.cuda, "set_sync_debug_mode", set_sync_debug_mode),
        (FakeTensor, "tolist", lambda tensor: card.read(tensor).tolist()),
    ]
    # transformers asks for fake tensors, and does not look at the values of a mask that is one.
    asked = sys.modules.get("transformers.utils.import_utils")
    return [*changes, (asked, "is_fake_tensor", lambda tensor: False)] if asked is not None else changes
