"""Sparse gradients of embeddings (`sparse=True`), which simulated tensors cannot hold.

In their place stands one row that is seen as every row of the weight (a stride of 0), on the memory of the rows that were
looked up. So it has the shape that optimizers want, and takes what a sparse gradient takes: a row for each index, also for
one that comes twice. What makes dense tensors of it, as momentum does, counts the whole weight: the most it can take.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from snugfit.attributes import Change

_LOOKUPS = (F.embedding, F.embedding_bag)
_SAID = "sparse gradients of embeddings count a row for each index, also where one comes twice"
_DENSE = "some sparse gradients of embeddings were counted as dense ones, which is the most that they can take"


def sparse_gradients(answered: Callable[[str], None]) -> list[Change]:
    """Returns the replacements with which embeddings get stand-ins of sparse gradients, which SparseAdam then takes.

    `answered`: gets what the estimate says about it.
    """
    lookups = [(F, lookup.__name__, _looking_up(lookup, answered)) for lookup in _LOOKUPS]
    return [*lookups, (torch.optim, "SparseAdam", _SparseAdam)]


def _looking_up(lookup: Callable[..., torch.Tensor], answered: Callable[[str], None]) -> Any:
    signature = inspect.signature(lookup)
    place = list(signature.parameters).index("sparse")

    @functools.wraps(lookup)
    def looked_up(*args: Any, **kwargs: Any) -> torch.Tensor:
        if not (args[place] if len(args) > place else kwargs.get("sparse")):
            return lookup(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        named = given.arguments
        weight = named["weight"]
        if not weight.requires_grad or not torch.is_grad_enabled():
            return lookup(*args, **kwargs)
        named["sparse"] = False
        other = named["scale_grad_by_freq"] or named.get("per_sample_weights") is not None or not weight.is_leaf
        if other or torch.compiler.is_compiling():
            answered(_DENSE)
            return lookup(*given.args, **given.kwargs)
        answered(_SAID)
        found: torch.Tensor = _Lookup.apply(weight, named["input"], lambda: lookup(*given.args, **given.kwargs))
        return found

    return looked_up


class _Lookup(torch.autograd.Function):
    """A lookup whose backward pass gives the weight its gradient itself, as autograd would copy one with a stride of 0."""

    @staticmethod
    def forward(
        ctx: Any, weight: torch.Tensor, places: torch.Tensor, look_up: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        ctx.save_for_backward(places)
        ctx.weight = weight
        return look_up()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, None, None]:
        (grad,), (places,), weight = grads, ctx.saved_tensors, ctx.weight
        width = weight.shape[1:]
        if grad.numel() == places.numel() * width.numel():
            rows = grad.reshape(-1, *width)
        else:  # a bag has one row for many; autograd copies what is made of it
            rows = grad.new_empty((places.numel(), *width)).clone()
        before = weight.grad
        if before is None or hasattr(before, "rows"):
            weight.grad = _stand_in(weight, rows, places.reshape(-1), before)
        return None, None, None


def _stand_in(weight: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, before: Any) -> Any:
    """Returns what stands for the sparse gradient of a weight, added to the one before it."""
    with torch.no_grad():
        if before is not None:
            rows, places = torch.cat([before.rows, rows]), torch.cat([before.places, places])
        found: Any = rows[:1].expand(weight.shape)
    found.rows, found.places = rows, places
    return found


class _SparseAdam(torch.optim.SparseAdam):
    """Stands for torch's, which wants sparse gradients: with tensors as large as those that it makes."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Moves the rows that have gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, weight.grad)
        return loss

    def _move(self, weight: torch.Tensor, grad: Any) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        state["step"] += 1
        if hasattr(grad, "rows"):
            rows, places = grad.rows, grad.places
        else:  # counted as a dense one
            rows, places = grad, torch.arange(len(grad), device=grad.device)
        order = places.sort()
        rows, places = torch.empty_like(rows), order.values.clone()  # each place once
        del order
        old = state["exp_avg"].index_select(0, places)
        moved = rows.sub(old).mul_(0.1)
        state["exp_avg"].index_add_(0, places, moved)
        old_squares = state["exp_avg_sq"].index_select(0, places)
        squares = rows.pow(2).sub_(old_squares).mul_(0.1)
        state["exp_avg_sq"].index_add_(0, places, squares)
        by = moved.add_(old).div_(squares.add_(old_squares).sqrt_().add_(1e-8))
        weight.index_add_(0, places, -1e-3 * by)
