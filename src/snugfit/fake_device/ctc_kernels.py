"""Connectionist temporal classification (`ctc_loss`): its table of partial sums is as wide as the longest target.

Lengths are values, which a simulation does not have. Targets that stand one after another are taken to be equally long, and
those of a table to fill it, which is the most that they can be.

Source: `aten/src/ATen/native/LossCTC.cpp`, ctc_loss_cpu_template; the CUDA version makes the same table.
"""

from __future__ import annotations

import torch
from torch import Tensor

from snugfit import private_torch


def register() -> None:
    """Puts the fake version in place; only in the worker."""
    private_torch.replace_fake(torch.ops.aten._ctc_loss.Tensor, ctc_loss)
    private_torch.replace_fake(torch.ops.aten._ctc_loss_backward.Tensor, ctc_loss_backward)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """Returns the losses and the table, without values.

    Args:
        log_probs: `[T, B, C]`.
        targets: `[B, S]`, or all one after another.
        input_lengths: `[B]`.
        target_lengths: `[B]`.
        blank: The label for nothing.
        zero_infinity: Whether infinite losses count as zero.
    """
    moments, samples = log_probs.shape[:2]
    longest = targets.shape[1] if targets.dim() == 2 else -(-targets.shape[0] // max(samples, 1))
    return log_probs.new_empty(samples), log_probs.new_empty(samples, moments, 2 * longest + 1)


def ctc_loss_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    losses: Tensor,
    table: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    """Returns the gradient of `log_probs`, without values; arguments as `ctc_loss`, and its results."""
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)
