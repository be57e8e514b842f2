"""Lazy modules (`nn.LazyLinear`) wait for a first batch to know their shapes; here they see one without values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from snugfit.errors import InputError, in_words
from snugfit.techniques.batches import map_tensors
from snugfit.training.model_call import output_of


def give_shapes(model: torch.nn.Module, batch: Any, forward: Callable[[Any, Any], Any] | None) -> None:
    """Runs a skeleton with lazy parameters on meta once, which gives them shapes; `InputError` where that fails."""
    waiting = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if is_lazy(tensor)]
    if not waiting:
        return
    shapes = map_tensors(batch, lambda tensor: tensor.to("meta"))
    try:
        with torch.no_grad():
            output_of(model, shapes, forward)
    except Exception as error:
        raise InputError(
            f"{waiting[0]!r} is lazy and has no shape yet, and the model could not be looked at without values "
            f"({in_words(error)}). Call the model on one batch before you give it to snugfit."
        ) from error
