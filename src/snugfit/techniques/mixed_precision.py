"""Mixed precision: compute in 16 bits under autocast, keep weights, gradients and state in fp32.

Saves about half of the activations that matmuls and convolutions save, and runs them on the fast units of a GPU. Adds a
16-bit copy of each weight while a forward pass runs (autocast's cache), so a model with few activations can need *more*
memory than plain fp32. `16-mixed` scales the loss so that small gradients survive fp16, skips updates whose gradients
overflow, and lowers the scale; `bf16-mixed` has fp32's range and needs none of that.

Wrong when: the model already holds 16-bit weights (use true precision); on CPUs without 16-bit matmul units it is slower
than fp32. Fidelity: rounding. Evaluation runs under autocast too, as the deployed model would.

Source: Micikevicius et al., Mixed Precision Training, 2018 (arXiv:1710.03740); torch.amp.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from snugfit.errors import InputError
from snugfit.recipe import Recipe
from snugfit.techniques.base import ModelTechnique

_COMPUTE_DTYPES = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


class MixedPrecision(ModelTechnique):
    """Runs forward passes under autocast."""

    field = "precision"

    @classmethod
    def wanted(cls, recipe: Recipe) -> bool:
        """Returns whether the precision is a mixed one."""
        return recipe.precision in _COMPUTE_DTYPES

    def change(self, model: nn.Module) -> None:
        """Refuses 16-bit weights, of which there is nothing left to mix (and whose gradients no scaler takes)."""
        halves = [name for name, weight in model.named_parameters() if weight.dtype in _COMPUTE_DTYPES.values()]
        if halves:
            raise InputError(
                f"precision={self.setup.recipe.precision!r} computes in 16 bits from weights in 32, but {halves[0]!r} holds "
                "16 bits already. Use bf16-true or 16-true, or build the model in fp32."
            )

    def around_forward(self) -> AbstractContextManager[Any]:
        """Returns autocast to the compute dtype."""
        return torch.autocast(self.setup.device.type, dtype=_COMPUTE_DTYPES[self.setup.recipe.precision])
