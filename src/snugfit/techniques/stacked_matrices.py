"""What stands in the place of a stack of experts' matrices, and takes part in products as a tensor does.

Code of experts picks matrices out of a parameter [experts, rows, columns], turns them, and multiplies by them: one by one
(`F.linear`, `@`), as a batch (`bmm`), or all at once, each with the rows of its own tokens (`grouped_mm`). `Matrices` gets
such calls by torch's protocol for objects that are no tensors (`__torch_function__`), so the code need not know of it. Every
such product is `multiply(rows, matrices)`, and heirs say what that is for them. Whatever else is done with a stack is done
with the tensor that it stands for, which is then made (`dense`).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Multiply = Callable[[Tensor, Tensor], Tensor]
"""A product of rows with matrices [..., inputs, outputs]."""

_PLAIN = {torch.matmul, torch.mm, torch.bmm, Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.__matmul__}
_GROUPED = ("_grouped_mm", "grouped_mm_fallback")
"""Torch's product of groups of rows, and that of transformers for cards that have none; both take `offs` by name."""


class InPlaceOfTensor:
    """An object that torch's functions accept as if it were a tensor."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by torch for each of its functions that gets such an object."""
        return _called(function, args, kwargs or {})

    def __matmul__(self, other: Any) -> Any:
        """Returns the product."""
        return _called(torch.matmul, (self, other), {})

    def __mul__(self, other: Any) -> Any:
        """Returns the elementwise product."""
        return _called(torch.mul, (self, other), {})

    def __add__(self, other: Any) -> Any:
        """Returns the sum."""
        return _called(torch.add, (self, other), {})


class Matrices(InPlaceOfTensor, ABC):
    """Stands for a stack of matrices, a part of one, or one matrix, without being a tensor."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @property
    @abstractmethod
    def mT(self) -> Matrices:
        """The same matrices, transposed."""

    @abstractmethod
    def picked(self, index: Any) -> Matrices:
        """Returns matrices of a stack, by an index into its first dimension."""

    @abstractmethod
    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """Returns the tensor that this stands for."""

    @abstractmethod
    def times(self, rows: Tensor, multiply: Multiply) -> Tensor:
        """Returns the product of rows with the matrices [..., inputs, outputs]."""

    def __getitem__(self, index: Any) -> Any:
        """Returns some of the matrices; an index that goes inside matrices gives an ordinary tensor."""
        numbers = isinstance(index, int) or (
            isinstance(index, Tensor) and index.dim() < 2 and index.dtype != torch.bool
        )
        picks = len(self.shape) == 3 and numbers
        return self.picked(index) if picks else self.dense()[index]

    def transpose(self, first: int, second: int) -> Any:
        """Returns the matrices with two dimensions exchanged, as a tensor's method."""
        last = {len(self.shape) - 1, len(self.shape) - 2}
        turned = {place % len(self.shape) for place in (first, second)} == last
        return self.mT if turned else self.dense().transpose(first, second)

    def t(self) -> Matrices:
        """Returns one matrix with rows and columns exchanged."""
        return self.mT

    def dim(self) -> int:
        """Returns the number of dimensions."""
        return len(self.shape)

    def __getattr__(self, name: str) -> Any:
        """Everything else that a tensor has is the tensor's."""
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dense(), name)


def _called(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a torch function: a product that knows this object, or one computed with the tensor it stands for."""
    args, kwargs = tuple(map(_matrices, args)), {name: _matrices(value) for name, value in kwargs.items()}
    first, second = (*args, None, None)[:2]
    if isinstance(first, Tensor) and isinstance(second, Matrices):
        if function is F.linear:
            bias = kwargs.get("bias", args[2] if len(args) > 2 else None)
            product = second.mT.times(_as_autocast(first), torch.matmul)
            return product if bias is None else product + bias.to(product.dtype)
        if function in _PLAIN:
            return second.times(_as_autocast(first), torch.matmul)
        if getattr(function, "__name__", "") in _GROUPED:
            return second.times(first, functools.partial(function, **kwargs))
    if isinstance(first, Matrices) and isinstance(second, Tensor) and function in _PLAIN and second.dim() > 1:
        # A @ x is (x^T @ A^T)^T, and `times` has the matrices on the right.
        return first.mT.times(_as_autocast(second.mT), torch.matmul).mT
    made = [one.dense() if isinstance(one, Matrices) else one for one in args]
    named = {name: one.dense() if isinstance(one, Matrices) else one for name, one in kwargs.items()}
    return function(*made, **named)


def _matrices(value: Any) -> Any:
    return value.matrices() if hasattr(type(value), "matrices") else value


def _as_autocast(rows: Tensor) -> Tensor:
    place = rows.device.type
    return rows.to(torch.get_autocast_dtype(place)) if torch.is_autocast_enabled(place) else rows
