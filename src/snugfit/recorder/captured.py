"""Tensors that code holds besides model and batch: class weights, a frozen teacher, a network inside of a loss.

They reach the simulation in closures, attributes and globals, so they cannot be handed over: the tensor object that
arrived becomes the fake one, wherever it is referred to. It is on the device, because that is where a real step needs it,
and it counts as weights from its first use on: what is captured but never touched by a step takes no memory.
Small whole numbers keep their values and stay on the host; where they meet tensors of the card, they are on the card too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from snugfit.private_torch import fake_tensors
from snugfit.private_torch.fake_tensors import FAKES, FakeFactory
from snugfit.private_torch.sparse_layouts import is_coalesced, parts_of, sparse_fake
from snugfit.techniques.batches import tensors_of


def captured_tensors(
    arrived: Iterable[torch.Tensor], models: Iterable[torch.nn.Module], *others: Any
) -> list[torch.Tensor]:
    """Returns the tensors in a request that belong neither to the models nor to `others` (batches)."""
    known = {id(tensor) for tensor in (*(one for model in models for one in _held_by(model)), *tensors_of(others))}
    return [tensor for tensor in arrived if id(tensor) not in known and not is_lazy(tensor)]


def _held_by(model: torch.nn.Module) -> Iterable[torch.Tensor]:
    for module in model.modules():
        for table in (module._parameters, module._buffers, vars(module)):
            yield from (value for value in table.values() if isinstance(value, torch.Tensor))


class Captured:
    """The captured tensors of one recording."""

    def __init__(self, factory: FakeFactory, device: torch.device, tensors: Iterable[torch.Tensor]) -> None:
        """Turns every tensor without values into a fake one, in place; call it outside of the recording."""
        self.unused: dict[int, torch.Tensor] = {}
        """Storages that no operator has used yet, and a tensor that has each."""
        self._factory = factory
        self._device = device
        self._real: dict[int, torch.Tensor] = {}
        self._moved: dict[int, torch.Tensor] = {}
        bases: dict[int, torch.Tensor] = {}
        for tensor in tensors:
            if not _has_no_values(tensor):
                self._real[tensor.untyped_storage()._cdata] = tensor
                continue
            if tensor.layout is not torch.strided:
                self._sparse(tensor)
                continue
            storage = tensor.untyped_storage()
            base = bases.get(storage._cdata)
            if base is None:
                base = bases[storage._cdata] = factory.empty((storage.nbytes(),), (1,), torch.uint8, device)
            fake = factory.view(base, tensor.shape, tensor.stride(), int(tensor.storage_offset()), tensor.dtype)
            if isinstance(tensor, torch.nn.Parameter):
                fake = torch.nn.Parameter(fake, tensor.requires_grad)
            elif tensor.requires_grad:
                fake.requires_grad_()
            fake_tensors.forget_conversions(factory.mode)
            torch.utils.swap_tensors(tensor, fake)  # type: ignore[no-untyped-call]
            self.unused[tensor.untyped_storage()._cdata] = tensor

    def _sparse(self, matrix: torch.Tensor) -> None:
        """Turns a sparse matrix into a fake one, whose parts count from their first use on."""
        parts = [self._factory.empty(part.shape, part.stride(), part.dtype, self._device) for part in parts_of(matrix)]
        self.unused.update((part.untyped_storage()._cdata, part) for part in parts)
        fake = sparse_fake(self._factory.mode, parts, matrix.shape, matrix.layout, coalesced=is_coalesced(matrix))
        torch.utils.swap_tensors(matrix, fake)  # type: ignore[no-untyped-call]

    def used(self, tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Returns those among an operator's tensors that are used for the first time."""
        keys = {part.untyped_storage()._cdata for tensor in tensors for part in parts_of(tensor)}
        return [self.unused.pop(key) for key in keys & self.unused.keys()]

    def on_device(self, value: Any) -> Any:
        """Returns arguments with captured whole numbers moved to the device, for an operator of the device."""
        if isinstance(value, torch.Tensor):
            key = value.untyped_storage()._cdata if type(value) is torch.Tensor and value.dim() else None
            if key is None or key not in self._real:
                return value
            if key not in self._moved:
                self._moved[key] = self._factory.empty(value.shape, value.stride(), value.dtype, self._device)
            return self._moved[key]
        return type(value)(map(self.on_device, value)) if isinstance(value, list | tuple) else value

    @property
    def has_numbers(self) -> bool:
        """Whether whole numbers with values were captured."""
        return bool(self._real)


def _has_no_values(tensor: torch.Tensor) -> bool:
    return type(tensor) in FAKES or tensor.device.type == "meta"  # fake: of a recording before this one
