"""The order of a step: which microbatch goes through the model when. A technique may bring another one (`order`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from snugfit.techniques.base import ModelTechnique, Order, WeightedPiece


def order_of(techniques: Iterable[ModelTechnique]) -> Order:
    """Returns the order that one of the techniques brings, or one microbatch after the other."""
    own = (technique.order() for technique in techniques)
    return next((order for order in own if order is not None), one_by_one)


def one_by_one(
    pieces: Iterable[WeightedPiece], forward: Callable[[object], Tensor], backward: Callable[[Tensor], None]
) -> Tensor:
    """Runs each microbatch forward and then backward; returns the whole batch's loss, 0-dim, detached."""
    total: Tensor | None = None
    for batch, factor in pieces:
        loss = weighted(forward(batch), factor)
        backward(loss)
        total = loss.detach() if total is None else total + loss.detach()
        del loss
    assert total is not None
    return total


def weighted(loss: Tensor, factor: float | Tensor) -> Tensor:
    """Returns a microbatch's part of the whole batch's loss."""
    if not isinstance(factor, Tensor) and factor == 0.0:  # another process has more pieces, and this one goes along
        factor = torch.zeros_like(loss)
    if isinstance(factor, Tensor):  # a factor of 0 cannot be skipped on the device, and 0 times NaN is NaN
        loss = loss * factor
        return torch.where(factor == 0, torch.zeros_like(loss), loss)
    return loss if factor == 1.0 else loss * factor
