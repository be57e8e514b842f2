"""A rehearsal: a card of the table, pretended in this process, with its memory and its kernels and no speed of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from snugfit.devices import Device
from snugfit.pretend_card.present import card_present
from snugfit.recording.generations import GENERATIONS


@contextmanager
def rehearsal(card: Device) -> Iterator[torch.device]:
    """Context with the device of a pretended card of the table; tensors on it are gone when it ends."""
    assert card.memory_bytes is not None
    with card_present(
        card.memory_bytes - card.context_bytes,
        capability=card.compute_capability or GENERATIONS[0],
        total_bytes=card.memory_bytes,
        name=card.vendor_name,
    ) as present:
        yield present.personality.device
