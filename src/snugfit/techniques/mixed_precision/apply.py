"""Forward passes under autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from snugfit.errors import InputError
from snugfit.techniques.base import ModelTechnique
from snugfit.techniques.batches import map_tensors

_COMPUTE_DTYPES = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


class MixedPrecision(ModelTechnique):
    """Runs forward passes under autocast."""

    field = "precision"
    stage = "numbers"
    values = ("16-mixed", "bf16-mixed")

    @staticmethod
    def word_of(dtype: torch.dtype) -> str:
        """Returns the word for autocast to a dtype; bf16's for any that has none of its own."""
        return next((word for word, one in _COMPUTE_DTYPES.items() if one == dtype), "bf16-mixed")

    def change(self, model: nn.Module) -> None:
        """Refuses 16-bit weights, of which there is nothing left to mix (and whose gradients no scaler takes)."""
        halves = [name for name, weight in model.named_parameters() if weight.dtype in _COMPUTE_DTYPES.values()]
        if halves:
            raise InputError(
                f"precision={self.setup.recipe.precision!r} computes in 16 bits from weights in 32, but {halves[0]!r} holds "
                "16 bits already. Use bf16-true or 16-true, or build the model in fp32."
            )

    def returned(self, output: Any) -> Any:
        """Returns the output in fp32: losses are computed outside of autocast, and some take no 16 bits."""
        dtype = _COMPUTE_DTYPES[self.setup.recipe.precision]
        return map_tensors(output, lambda one: one.float() if one.dtype == dtype else one, _is_computed)

    def around_forward(self) -> AbstractContextManager[Any]:
        """Returns autocast to the compute dtype."""
        setup = self.setup
        # Its cache would hold a copy of every weight to the end of the pass, also of those that are collected for a moment.
        collected = setup.ranks is not None and setup.recipe.shard != "none"
        return torch.autocast(
            setup.device.type, dtype=_COMPUTE_DTYPES[setup.recipe.precision], cache_enabled=not collected
        )


def _is_computed(value: Any) -> bool:
    """Whether a value is a tensor, or stands for one as deferred logits do."""
    return hasattr(type(value), "__torch_function__")
