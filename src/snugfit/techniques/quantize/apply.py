"""Frozen linear layers and experts with packed weights, made before the model moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from snugfit.errors import InputError, listed, note, warn
from snugfit.expert_stacks import stacks_of
from snugfit.private_torch.late_compiler import compiling_late
from snugfit.techniques.adapter.layers import load_peft
from snugfit.techniques.base import ModelTechnique
from snugfit.techniques.frozen_linear import freeze_linear
from snugfit.techniques.frozen_stack import freeze_stack
from snugfit.techniques.linear_layers import embedding_weights, is_linear, linear_layers, tied_weights
from snugfit.techniques.packed_weight import BLOCK, PackedWeight, bitsandbytes_library, table_of_scales
from snugfit.techniques.true_precision.apply import held_in
from snugfit.units import format_bytes

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

MUCH = 20
"""What stays as it is deserves a warning where it is more than a 20th of what was packed."""


class Quantization(ModelTechnique):
    """Packs frozen weights layer by layer, on their way to the device."""

    field = "quantize"
    stage = "numbers"
    from_host = True
    stays = "packed weights: what was rounded away does not come back"

    def change_before_it_moves(self, model: nn.Module) -> None:
        """Packs the layers, and puts them on the device."""
        quantize_layers(model, self.setup.recipe, self.setup.device)


def quantize_layers(model: nn.Module, recipe: Recipe, device: torch.device) -> list[str]:
    """Packs the weights of all linear layers but the head, and of stacked experts, one after the other.

    `model`: a model, on any device; changed in place. Packed layers go to `device`, the rest stays where it is.
    Returns names of the layers, and of the experts' parameters, whose weights are packed now.
    """
    packed = {name: module for name, module in model.named_modules() if isinstance(module, PackedWeight)}
    if packed:
        _check_format(next(iter(packed.values())), recipe)
        return list(packed)
    if recipe.quantize == "nf4":
        bitsandbytes_library()
    tied = tied_weights(model)
    names = [name for name, layer in linear_layers(model).body.items() if _can_be_packed(layer, tied)]
    experts = {
        name: module for name, module in model.named_modules() if _can_be_packed_stacked(module, recipe.quantize, tied)
    }
    if not names and not experts:
        raise InputError(
            f"quantize={recipe.quantize!r}: {type(model).__name__} has no linear layer that can be quantised; heads, "
            "embeddings and convolutions keep their precision. Leave quantize out."
        )
    dtype = held_in(recipe)
    before = after = 0
    for name in names:
        layer = model.get_submodule(name)
        # `del` below: a name for the full weight would keep it alive when it is packed.
        weight = layer.get_parameter("weight")
        before += weight.numel() * (dtype or weight.dtype).itemsize
        del weight
        freeze_linear(layer, recipe.quantize, double=recipe.double_quantize, device=device, dtype=dtype)
        after += sum(buffer.nbytes for buffer in layer.buffers())
    stacks: list[str] = []
    for place, module in experts.items():
        for name in stacks_of(module):
            weight = module.get_parameter(name)
            before += weight.numel() * (dtype or weight.dtype).itemsize
            del weight
            stack = freeze_stack(
                module, name, recipe.quantize, double=recipe.double_quantize, device=device, dtype=dtype
            )
            after += sum(buffer.nbytes for buffer in stack.buffers())
            stacks.append(f"{place}.{name}")
    how = (
        f"by the kernels of bitsandbytes {bitsandbytes_library().__version__}"
        if recipe.quantize == "nf4"
        else "by torch"
    )
    beside = f" and {len(stacks)} stacks of experts" if stacks else ""
    note(
        f"{recipe.quantize}: {len(names)} linear layers{beside} packed {how}, {after / before:.3f} of their bytes remain; "
        "the libraries' own layers keep inputs or repack."
    )
    _tell_what_stays(model, recipe, dtype, before)
    return names + stacks


def load_libraries(recipe: Recipe) -> None:
    """Loads what adapters and quantised weights need; a simulation calls this before it records."""
    with compiling_late():
        if recipe.adapter != "none":
            load_peft()
        if recipe.quantize == "nf4":
            bitsandbytes_library()
    if recipe.double_quantize:
        table_of_scales()


def _tell_what_stays(model: nn.Module, recipe: Recipe, dtype: torch.dtype | None, packed_bytes: int) -> None:
    """Says which matrices are not packed, and their bytes; a warning where they are many."""
    layers = linear_layers(model)
    heads = {weight for head in (*layers.classifier.values(), *layers.output.values()) for weight in head.parameters()}
    known = heads | embedding_weights(model)
    stay = {
        name: weight.numel() * (dtype or weight.dtype).itemsize
        for name, weight in model.named_parameters()
        if weight.dim() > 1 and weight.is_floating_point() and weight not in known
    }
    if not stay:
        return
    total, largest = sum(stay.values()), sorted(stay, key=lambda name: -stay[name])
    tell = warn if total * MUCH > packed_bytes else note
    tell(
        f"quantize={recipe.quantize!r} leaves {format_bytes(total)} of matrices beside embeddings and head as they are, "
        f"because they are in no linear layer and no stack of experts that can be packed: {listed(largest, 3)}."
    )


def _check_format(layer: PackedWeight, recipe: Recipe) -> None:
    if (layer.method, layer.double_scales) != (recipe.quantize, recipe.double_quantize):
        double = ", double_quantize" if layer.double_scales else ""
        raise InputError(
            f"the model's weights are quantised already (quantize={layer.method}{double}), and what was rounded away does "
            "not come back. Give the same settings, or build the model anew."
        )


def _can_be_packed(layer: nn.Module, tied: set[nn.Parameter]) -> bool:
    """Layers of other classes have a forward of their own, and a shared weight also belongs to an embedding."""
    weight = layer._parameters.get("weight")
    plain = type(layer) is nn.Linear or (is_linear(layer) and not isinstance(layer, nn.Linear))
    return plain and weight is not None and weight.numel() % 2 == 0 and weight not in tied


def _can_be_packed_stacked(module: nn.Module, method: str, tied: set[nn.Parameter]) -> bool:
    """Whether all stacks of some experts can be packed; one alone is not, so that adapters nest as in the plain model."""
    stacks = [module.get_parameter(name) for name in stacks_of(module)]
    whole = method == "int8" or all(stack[0].numel() % BLOCK == 0 for stack in stacks)  # an expert's scales are its own
    return bool(stacks) and whole and not any(stack in tied for stack in stacks)
