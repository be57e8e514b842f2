"""Watches whether updates of 16-bit weights are lost to rounding, and says so once.

A sample of weights is compared before and after one early update; weights that had a gradient and did not move have lost
their update. Nothing is kept after that step.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from snugfit.errors import SnugfitWarning

SAMPLE = 4096
"""Weights looked at, at most, in each of the parameters."""
LOST_SHARE = 0.5
"""A warning comes when more than this share of the sampled weights stood still."""


class LostUpdates:
    """Compares a sample of weights around one update."""

    def __init__(self, weights: list[nn.Parameter], at_step: int) -> None:
        """Chooses the sample.

        Args:
            weights: What training changes.
            at_step: The step to watch, from 1.
        """
        self._weights = [weight for weight in weights if weight.dim() >= 2] or weights
        self._at_step = at_step
        self._before: list[Tensor] = []

    def before(self, step: int) -> None:
        """Copies the sample if this is the step to watch.

        Args:
            step: The step's number.
        """
        if step == self._at_step:
            self._before = [_sample(weight).clone() for weight in self._weights]

    def after(self, step: int) -> None:
        """Compares the sample and warns; reads one number from the device, in this one step.

        Args:
            step: The step's number.
        """
        if step != self._at_step or not self._before:
            return
        still = [
            (old == _sample(weight)).float().mean() for old, weight in zip(self._before, self._weights, strict=True)
        ]
        self._before = []
        share = float(torch.stack(still).mean())
        if share > LOST_SHARE:
            warnings.warn(
                f"{share:.0%} of the sampled weights did not move in step {step}: updates are smaller than half a step of "
                "the 16-bit format and are lost to rounding. Set stochastic_rounding, use a higher learning rate, or a "
                "mixed precision.",
                SnugfitWarning,
                stacklevel=2,
            )


def _sample(weight: Tensor) -> Tensor:
    return weight.detach().reshape(-1)[:SAMPLE]
