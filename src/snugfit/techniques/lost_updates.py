"""Watches whether updates of 16-bit weights are lost to rounding, and says so once.

A sample of weights is compared before and after one early update; weights that had a gradient and did not move have lost
their update. Rows of an embedding that the batch did not touch are not counted. Nothing is kept after that step.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from snugfit.errors import warn

SAMPLE, SHARE, LEAST = 4096, 1024, 16
"""Weights looked at, at most, in each of the parameters, the part of it that they may be, and how many at least: a watcher
must not be what a step needs most memory for. The sample lies on the host, since no prediction sees the step that it
watches; on a CPU, where that is the device, it is 1.5 bytes for a weight of 2, so these keep it within 0.2 % of them."""
LOST_SHARE = 0.5
"""A warning comes when more than this share of the sampled weights stood still."""


class LostUpdates:
    """Compares a sample of weights around one update."""

    def __init__(self, weights: list[nn.Parameter], at_step: int) -> None:
        """Chooses the sample of weights; `at_step` is the step to watch, counted from 1."""
        self._weights = [weight for weight in weights if weight.dim() >= 2] or weights
        self._at_step = at_step
        self._watched: list[tuple[nn.Parameter, Tensor, Tensor, RemovableHandle]] = []

    def before(self, step: int) -> None:
        """Copies the sample if this is the step to watch."""
        for weight in [one for one in self._weights if one.requires_grad] if step == self._at_step else ():
            before = _sample(weight).to("cpu", copy=True)
            touched = torch.zeros_like(before, dtype=torch.bool)
            hook = weight.register_hook(functools.partial(_note, touched))  # type: ignore[no-untyped-call]
            self._watched.append((weight, before, touched, hook))

    def after(self, step: int) -> None:
        """Compares the sample and warns. This makes the host wait for the device, in this one step."""
        if step != self._at_step or not self._watched:
            return
        still = touched = torch.zeros(())
        for weight, old, mask, _ in self._watched:
            still = still + ((old == _sample(weight).cpu()) & mask).sum()
            touched = touched + mask.sum()
        self.forget()
        share = float(still / touched.clamp(min=1))
        if share > LOST_SHARE:
            warn(
                f"{share:.0%} of the sampled weights did not move in step {step}: updates are smaller than half a step of "
                "the 16-bit format and are lost to rounding. Set stochastic_rounding, use a higher learning rate, or a "
                "mixed precision."
            )

    def forget(self) -> None:
        """Drops the sample and the hooks, also after a step that failed."""
        for *_, hook in self._watched:
            hook.remove()
        self._watched = []


def _note(touched: Tensor, gradient: Tensor) -> None:
    size = _sample(gradient).cpu().abs()
    touched |= (size > 0) & (size < math.inf)  # a bad step is masked, and loses nothing


def _sample(weight: Tensor) -> Tensor:
    flat = weight.detach().reshape(-1)
    return flat[: min(SAMPLE, max(LEAST, flat.numel() // SHARE))]
