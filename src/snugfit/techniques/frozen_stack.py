"""The matrices of all experts of a layer, frozen and held in 4 or 8 bits (`packed_weight.py`).

A `FrozenStack` takes the place of a parameter [experts, rows, columns] and is read by the experts' own code as if it were
that parameter (`stacked_matrices.py`). A product unpacks what it multiplies by: one expert's matrix where the code goes
through experts one by one, the whole stack where all are multiplied at once (`grouped_mm`). Autograd keeps none of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from snugfit.techniques.init.late import values_of
from snugfit.techniques.packed_weight import PackedWeight
from snugfit.techniques.stacked_matrices import InPlaceOfTensor, Matrices, Multiply


class FrozenStack(InPlaceOfTensor, PackedWeight):
    """Takes the place of a parameter of experts that is never trained; made by `freeze_stack`."""

    @property
    def shape(self) -> torch.Size:
        """[experts, rows, columns], as the parameter had it."""
        return torch.Size(self.packed_shape)

    @property
    def device(self) -> torch.device:
        """Where the packed weight is."""
        return self.W_q.device

    @property
    def requires_grad(self) -> bool:
        """Never: packed weights are frozen."""
        return False

    def matrices(self) -> PackedMatrices:
        """Returns all matrices, for products."""
        return PackedMatrices(self, None, turned=False)

    def __getitem__(self, index: Any) -> Any:
        """Returns matrices by an index into the first dimension."""
        return self.matrices()[index]

    def __getattr__(self, name: str) -> Any:
        """Attributes that a module lacks and a tensor has are those of the unpacked weight."""
        if name.startswith("_") or not hasattr(Tensor, name):
            return super().__getattr__(name)
        return getattr(self.matrices(), name)


class PackedMatrices(Matrices):
    """Matrices of a `FrozenStack`."""

    def __init__(self, stack: FrozenStack, index: Any, *, turned: bool) -> None:
        self._stack, self._index, self._turned = stack, index, turned
        self.dtype, self.device = stack.dtype, stack.device
        experts, *sizes = stack.packed_shape
        count = [experts] if index is None else list(index.shape) if isinstance(index, Tensor) else []
        self.shape = torch.Size([*count, *(reversed(sizes) if turned else sizes)])

    @property
    def mT(self) -> PackedMatrices:
        """The same matrices, transposed."""
        return PackedMatrices(self._stack, self._index, turned=not self._turned)

    def picked(self, index: Any) -> Matrices:
        """Returns some of these matrices."""
        return PackedMatrices(self._stack, index if self._index is None else self._index[index], turned=self._turned)

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """Returns them unpacked."""
        weight = self._stack.dequantize(dtype, self._index)
        return weight.mT if self._turned else weight

    def times(self, rows: Tensor, multiply: Multiply) -> Tensor:
        """Returns the product; neither rows nor unpacked matrices are kept for backward."""
        result: Tensor = _Product.apply(rows, self, multiply)
        return result


class _Product(torch.autograd.Function):
    """The product with matrices that are unpacked in forward and again in backward."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrices: PackedMatrices, multiply: Multiply) -> Tensor:
        ctx.matrices, ctx.multiply = matrices, multiply
        return multiply(rows, matrices.dense(rows.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.multiply(gradient, ctx.matrices.mT.dense(gradient.dtype)), None, None


@torch.no_grad()
def freeze_stack(
    module: nn.Module, name: str, method: str, *, double: bool, device: torch.device, dtype: torch.dtype | None
) -> FrozenStack:
    """Puts a `FrozenStack` in the place of a parameter; the full weight is freed.

    `name`: their parameter, on any device; it may be awaited.
    `device`: where the packed weight is to live; only pieces of the full one go there.
    `dtype`: dtype that the weight is to have for others; None: its own.
    `method`: nf4 or int8.
    `double`: whether scales of nf4 are quantised, too.
    """
    weight = module.get_parameter(name)
    kept = dtype or weight.dtype
    values = values_of(weight)
    del weight, module._parameters[name]
    stack = FrozenStack()
    stack.hold(values, method, double=double, device=device, dtype=kept)
    module.add_module(name, stack)
    return stack
