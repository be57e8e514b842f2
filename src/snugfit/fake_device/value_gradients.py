"""Gradients whose formulas look at values: products of elements, and the largest, smallest or middle one of a whole tensor.

Torch asks whether a factor is zero, and takes a short formula where none is. Of fake tensors it never asks, and takes the
long one, with up to twice the bytes; on a processor the same goes for `max()`, `min()` and `median()` over all elements.
Here these gradients are written as a real run takes them, line by line, for factors none of which is zero. A run with zeros
takes the long formula, and more bytes. Tensors with real numbers keep torch's own gradients.

Source: `prod_backward`, `cumprod_backward` and `evenly_distribute_backward` in torch/csrc/autograd/FunctionsManual.cpp of
torch 2.11 to 2.15.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from snugfit import private_torch
from snugfit.private_torch import dispatcher
from snugfit.private_torch.fake_tensors import FAKES

Formulas = dict[Any, Callable[..., Tensor]]
"""Operator -> its gradient, from that of the result, the source, the result and what else was given."""


class _WithFormula(torch.autograd.Function):
    """An operator on a tensor and some numbers, with a formula for its gradient."""

    @staticmethod
    def forward(ctx: Any, operator: Any, formula: Any, source: Tensor, *more: Any) -> Any:
        """Runs the operator, and saves what torch saves."""
        with private_torch.below_autograd():
            result = operator(source, *more)
        ctx.formula, ctx.more = formula, more
        ctx.save_for_backward(source, result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Returns the gradient of the source."""
        source, result = ctx.saved_tensors
        found = ctx.formula(gradients[0], source, result, *ctx.more)
        return None, None, found, *(None for _ in ctx.more)


def _product_of_all(gradient: Tensor, source: Tensor, result: Tensor) -> Tensor:
    (source == 0).any()
    return gradient * (result / source)


def _product(gradient: Tensor, source: Tensor, result: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    if source.dim() == 0:
        return gradient
    if not keepdim:
        gradient, result = gradient.unsqueeze(dim), result.unsqueeze(dim)
    zeros = source == 0
    zeros.sum(dim, keepdim=True).sum()
    return gradient * (result / source)


def _products_so_far(gradient: Tensor, source: Tensor, result: Tensor, dim: int) -> Tensor:
    if source.numel() <= 1 or source.shape[dim] == 1:
        return gradient
    weighted, zeros = result * gradient, source == 0
    zeros.any()
    flipped = weighted.flip(dim)
    summed = flipped.cumsum(dim)
    reversed_sum = summed.flip(dim)
    del flipped, summed
    return reversed_sum.div_(source)


def _chosen_of_all(gradient: Tensor, source: Tensor, result: Tensor) -> Tensor:
    chosen = source == result
    found = gradient.new_zeros(source.shape)
    return found.masked_fill_(chosen, gradient / chosen.sum())


def _kernel(operator: Any, formula: Callable[..., Tensor], key: str) -> Callable[..., Any]:
    def kernel(keys: Any, source: Tensor, *more: Any, dtype: torch.dtype | None = None) -> Any:
        if type(source) not in FAKES:
            named = {} if dtype is None else {"dtype": dtype}
            return dispatcher.torchs_own_gradient(operator, keys, key, source, *more, **named)
        return _WithFormula.apply(operator, formula, source if dtype is None else source.to(dtype), *more)

    return kernel


def register() -> None:
    """Registers these gradients; call it once in a process."""
    aten = torch.ops.aten
    anywhere: Formulas = {
        aten.prod.default: _product_of_all, aten.prod.dim_int: _product, aten.cumprod.default: _products_so_far
    }  # fmt: skip
    on_processor: Formulas = {operator.default: _chosen_of_all for operator in (aten.max, aten.min, aten.median)}
    for key, formulas in (("AutogradPrivateUse1", anywhere), ("AutogradCPU", {**anywhere, **on_processor})):
        for operator, formula in formulas.items():
            name = str(operator).replace("aten.", "aten::").removesuffix(".default")
            dispatcher.claim_kernel(name, _kernel(operator, formula, key), key, with_keys=True)
