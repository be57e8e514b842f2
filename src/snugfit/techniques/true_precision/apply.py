"""Batches cast to the 16-bit dtype of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from snugfit.errors import warn
from snugfit.techniques.base import ModelTechnique
from snugfit.techniques.batches import map_tensors

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

_DTYPES = {"16": torch.float16, "bf16": torch.bfloat16, None: None}


def held_in(recipe: Recipe) -> torch.dtype | None:
    """Returns the 16-bit dtype of the weights; None where their dtype is left alone."""
    return _DTYPES[recipe.true_precision]


class TruePrecision(ModelTechnique):
    """Casts each batch as it comes; `prepare` casts the model on its way to the device (`init.settle`)."""

    field = "precision"
    stage = "numbers"
    stays = "weights in 16 bits: what was rounded away does not come back"
    values = ("16-true", "bf16-true")

    def change(self, model: nn.Module) -> None:
        """Says what fp16 without loss scaling risks."""
        if held_in(self.setup.recipe) == torch.float16:
            warn(
                "precision='16-true' overflows above 65504 and has no loss scaling; a step that does is not taken and "
                "stops the run. bf16-true or 16-mixed are safer."
            )

    def convert(self, batch: Any) -> Any:
        """Casts floating tensors to the weights' dtype."""
        dtype = held_in(self.setup.recipe)
        assert dtype is not None
        return map_tensors(batch, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
