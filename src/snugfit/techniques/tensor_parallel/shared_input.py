"""Layers that are cut by their outputs and take the same input, such as q, k and v: one sum of its gradient for all of them.

Each part of such a layer gives a part of the gradient of its input, which is added up among the processes. What is handed
to the first of the layers as a tensor of all of them is handed to the others again, so that autograd adds up what it gets
from all of them here, and the processes add up once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate


class SharedInput:
    """The input of some layers, as a tensor of all processes, from the first that takes it to the last."""

    def __init__(self, layers: Sequence[nn.Module], mesh: DeviceMesh) -> None:
        """Hooks the layers before they are cut: these hooks must see the plain input, so they run first."""
        self._mesh, self._count = mesh, len(layers)
        self._whole: Tensor | None = None
        self._shared: DTensor | None = None
        self._taken: set[int] = set()
        for number, layer in enumerate(layers):
            layer.register_forward_pre_hook(functools.partial(self._hand, number))

    def _hand(self, number: int, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if number in self._taken:  # an earlier pass broke off, or not all of them took part
            self._whole = None
            self._taken.clear()
        # One DTensor for all layers that get this very tensor, so that autograd adds up their gradients before the
        # processes do.
        if self._whole is not inputs[0]:
            self._whole = inputs[0]
            self._shared = DTensor.from_local(inputs[0], self._mesh, [Replicate()], run_check=False)
        found = self._shared
        self._taken.add(number)
        if len(self._taken) == self._count:
            self._whole = self._shared = None
            self._taken.clear()
        return (found, *inputs[1:])
