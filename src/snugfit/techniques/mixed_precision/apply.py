"""Forward passes under autocast."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.errors import InputError
from snugfit.techniques.base import ModelTechnique

_COMPUTE_DTYPES = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


class MixedPrecision(ModelTechnique):
    """Runs forward passes under autocast."""

    field = "precision"
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
        return _in_fp32(output, dtype)

    def around_forward(self) -> AbstractContextManager[Any]:
        """Returns autocast to the compute dtype."""
        setup = self.setup
        # Its cache would hold a copy of every weight to the end of the pass, also of those that are collected for a moment.
        collected = setup.ranks is not None and setup.recipe.shard != "none"
        return torch.autocast(
            setup.device.type, dtype=_COMPUTE_DTYPES[setup.recipe.precision], cache_enabled=not collected
        )


def _in_fp32(value: Any, dtype: torch.dtype) -> Any:
    """An output with its tensors of a dtype in fp32; the model's own objects stay as they are."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype == dtype else value
    if isinstance(value, Mapping):
        made = copy.copy(value)
        for name, part in value.items():
            made[name] = _in_fp32(part, dtype)  # type: ignore[index]
        return made
    if isinstance(value, tuple | list):
        parts = [_in_fp32(part, dtype) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
