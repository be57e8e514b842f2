"""Random masks between layers that are cut: each process draws its own, and outside of them all draw the same.

Processes that take the same samples draw from generators in equal states, as residuals and what else is whole must get
equal masks. Heads and features of different processes, however, would get equal masks, too, which one process never draws.
From the layers that are cut by their outputs to the one that is cut by its inputs, each process therefore draws from a state
that is made of the common one and its part's number; behind it, all go on from one made of the common one alone. Where
nothing was drawn, nothing changes. A block that is computed again begins in the state in which it began first, and so draws
the same masks.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import torch
from torch import nn

from snugfit.device_kinds import draw_from, drawn_from, seed_generator
from snugfit.errors import InputError
from snugfit.techniques.shard.ranks import Ranks


class OwnMasks:
    """Makes each process draw its own random numbers between two layers that are cut, and the common ones elsewhere."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._device = ranks, ranks.device
        self._part = ranks.number % ranks.tensor
        self._common: dict[nn.Module, tuple[bytes, bytes]] = {}

    def surround(self, first: nn.Module, last: nn.Module) -> None:
        """Separates what is drawn from `first`, the first of the layers cut by outputs, to `last`, cut by its inputs."""
        first.register_forward_pre_hook(torch.compiler.disable(functools.partial(self._begin, last)))  # type: ignore[no-untyped-call]
        last.register_forward_pre_hook(torch.compiler.disable(self._end))  # type: ignore[no-untyped-call]

    def _begin(self, last: nn.Module, layer: nn.Module, inputs: Any) -> None:
        if layer.training:
            common = drawn_from(self._device)
            seed_generator(self._device, _number(common, self._part + 1))
            self._common[last] = common, drawn_from(self._device)

    def _end(self, last: nn.Module, inputs: Any) -> None:
        if last in self._common:
            common, begun = self._common.pop(last)
            # Nothing was drawn in between (no dropout, or p=0): go on as if nobody had touched the generator.
            if drawn_from(self._device) == begun:
                draw_from(self._device, common)
            else:
                seed_generator(self._device, _number(common, 0))

    def check_before_first(self, model: nn.Module) -> None:
        """Makes the model's first training pass raise `InputError` unless generators of a group start out equal."""

        def check(model: nn.Module, inputs: Any) -> None:
            if not model.training:
                return
            handle.remove()
            degree = self._ranks.tensor
            told = [own for (own,) in self._ranks.agree([_number(drawn_from(self._device), 0) % 2**52])]
            if any(told[number] != told[number // degree * degree] for number in range(len(told))):
                raise InputError(
                    f"tensor_parallel={degree} has {degree} processes take the same samples, and their random numbers "
                    "differ, so that dropout would give them different residuals. Seed them alike: "
                    f"torch.manual_seed(seed + rank // {degree})."
                )

        handle = model.register_forward_pre_hook(torch.compiler.disable(check))  # type: ignore[no-untyped-call]


def _number(state: bytes, part: int) -> int:
    """A seed made of a generator's state and the number of the part."""
    return (
        int.from_bytes(hashlib.blake2b(state, digest_size=8, salt=part.to_bytes(8, "little")).digest(), "little") >> 1
    )
