"""Frozen linear layers with packed weights, made before the model moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from snugfit.errors import InputError, note
from snugfit.techniques.adapter.layers import load_peft
from snugfit.techniques.frozen_linear import FrozenLinear, bitsandbytes_library, freeze_linear, table_of_scales
from snugfit.techniques.linear_layers import is_linear, linear_layers, tied_weights
from snugfit.techniques.true_precision.apply import held_in

if TYPE_CHECKING:
    from snugfit.recipe import Recipe


def quantize_layers(model: nn.Module, recipe: Recipe, device: torch.device) -> list[str]:
    """Packs the weights of all linear layers but the head, one after the other.

    Args:
        model: A model, on any device; changed in place. Packed layers go to `device`, the rest stays where it is.
        recipe: Its `quantize`, `double_quantize` and precision.
        device: Where training runs.

    Returns:
        Names of the layers whose weights are packed now.

    Raises:
        InputError: There is no such layer, the library is missing, or the model was packed in another format before.
    """
    packed = {name: module for name, module in model.named_modules() if isinstance(module, FrozenLinear)}
    if packed:
        _check_format(next(iter(packed.values())), recipe)
        return list(packed)
    if recipe.quantize == "nf4":
        bitsandbytes_library()
    tied = tied_weights(model)
    names = [name for name, layer in linear_layers(model).body.items() if _can_be_packed(layer, tied)]
    if not names:
        raise InputError(
            f"quantize={recipe.quantize!r}: {type(model).__name__} has no linear layer that can be quantised; heads, "
            "embeddings and convolutions keep their precision. Leave quantize out."
        )
    dtype = held_in(recipe)
    before = after = 0
    for name in names:
        layer = model.get_submodule(name)
        weight = layer.get_parameter("weight")
        before += weight.numel() * (dtype or weight.dtype).itemsize
        del weight
        freeze_linear(layer, recipe.quantize, double=recipe.double_quantize, device=device, dtype=dtype)
        after += sum(buffer.nbytes for buffer in layer.buffers())
    how = (
        f"by the kernels of bitsandbytes {bitsandbytes_library().__version__}"
        if recipe.quantize == "nf4"
        else "by torch"
    )
    note(
        f"{recipe.quantize}: {len(names)} linear layers packed {how}, {after / before:.3f} of their bytes remain; the "
        "libraries' own layers keep inputs or repack."
    )
    return names


def load_libraries(recipe: Recipe) -> None:
    """Loads what adapters and quantised weights need; a simulation does so before it records.

    Args:
        recipe: Its `adapter`, `quantize` and `double_quantize`.

    Raises:
        InputError: A library is not installed.
    """
    if recipe.adapter != "none":
        load_peft()
    if recipe.quantize == "nf4":
        bitsandbytes_library()
    if recipe.double_quantize:
        table_of_scales()


def _check_format(layer: FrozenLinear, recipe: Recipe) -> None:
    if (layer.method, layer.double_scales) != (recipe.quantize, recipe.double_quantize):
        double = ", double_quantize" if layer.double_scales else ""
        raise InputError(
            f"the model's weights are quantised already (quantize={layer.method}{double}), and what was rounded away does "
            "not come back. Give the same settings, or build the model anew."
        )


def _can_be_packed(layer: nn.Module, tied: set[nn.Parameter]) -> bool:
    """Layers of other classes have a forward of their own, and a shared weight is an embedding's, too."""
    weight = layer._parameters.get("weight")
    plain = type(layer) is nn.Linear or (is_linear(layer) and not isinstance(layer, nn.Linear))
    return plain and weight is not None and weight.numel() % 2 == 0 and weight not in tied
