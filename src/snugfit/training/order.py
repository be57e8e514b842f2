"""The order in which microbatches go through the model: a strategy of the step, so that another one can take its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Pieces = list[tuple[Any, "float | Tensor"]]
"""Microbatches with the factor of each one's loss."""
Forward = Callable[[Any], Tensor]
"""Microbatch -> its loss, 0-dim."""
Backward = Callable[[Tensor], None]
"""Loss -> gradients are added up."""
Order = Callable[[Pieces, Forward, Backward], Tensor]
"""Runs all passes of a step and returns the loss of the whole batch, detached."""


def standard(pieces: Pieces, forward: Forward, backward: Backward) -> Tensor:
    """One microbatch after the other, each forward and then backward.

    Args:
        pieces: The microbatches.
        forward: Gives a microbatch's loss.
        backward: Adds the gradients of a weighted loss.

    Returns:
        The loss of the whole batch, 0-dim, detached.
    """
    total: Tensor | None = None
    for batch, factor in pieces:
        if isinstance(factor, float) and factor == 0.0:
            continue  # nothing of it counts, and the mean over nothing is not a number
        loss = forward(batch)
        if not (isinstance(factor, float) and factor == 1.0):
            loss = loss * factor
            if isinstance(factor, Tensor):  # a factor of 0 cannot be skipped on the device, and 0 times NaN is NaN
                loss = torch.where(factor == 0, torch.zeros_like(loss), loss)
        backward(loss)
        total = loss.detach() if total is None else total + loss.detach()
        del loss
    assert total is not None
    return total
