"""Random numbers that a model draws in its passes, of several processes.

What the first pass of all draws to keep it (a permutation, random features) has to be the same in each process, so all draw
the first one's numbers in the first step. What is drawn anew for each sample is not what one process would draw.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from snugfit.device_kinds import draw_from, drawn_from
from snugfit.techniques.held_values import held_values
from snugfit.techniques.shard.ranks import Ranks

_HOST = torch.device("cpu")


class Drawing:
    """Whether the passes of one process draw random numbers."""

    def __init__(self, ranks: Ranks, model: nn.Module) -> None:
        self.drew = False
        self._ranks, self._model = ranks, model

    @contextlib.contextmanager
    def watched(self, *, first: bool) -> Iterator[None]:
        """Context of the passes of a step; in the first step of all, all processes draw the numbers of the first one."""
        own = start = self._states()
        if first and self._ranks.tensor == 1:  # cut layers have a rule of their own (`tensor_parallel/masks.py`)
            start = self._ranks.tell(own if self._ranks.number == 0 else None)[0]
        if start != own:
            self._put(start)
        try:
            generators = self._generators()
            yield
            self.drew = self.drew or self._states() != start or self._generators() != generators
        finally:
            if start != own:
                self._put(own)

    def _states(self) -> tuple[Any, ...]:
        """The states of the global generators of Python, NumPy and torch."""
        name, keys, *rest = np.random.get_state(legacy=True)
        assert isinstance(keys, np.ndarray)
        torches = [drawn_from(device) for device in dict.fromkeys([_HOST, self._ranks.device])]
        return random.getstate(), (name, keys.tolist(), *rest), torches

    def _put(self, states: tuple[Any, ...]) -> None:
        of_python, of_numpy, torches = states
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        for device, state in zip(dict.fromkeys([_HOST, self._ranks.device]), torches, strict=True):
            draw_from(device, state)

    def _generators(self) -> dict[str, bytes]:
        held = held_values(self._model)
        return {
            path: one.value.get_state().numpy().tobytes()
            for path, one in held.items()
            if isinstance(one.value, torch.Generator)
        }
