"""Quantised frozen weights under adapters: nf4 holds four of 16 bits, int8 eight, and each product unpacks one layer.

Saves the weights of all linear layers but the head: of 2 bytes a weight in bf16 stay 0.56 (nf4), 0.52 (nf4 with
`double_quantize`) or 1.0 (int8); with LoRA on top this is QLoRA. Embeddings, norms and the head keep their precision.
Costs unpacking a layer in forward and twice in backward with checkpointing, and one unpacked layer as a temporary: the
saving is nothing for a model whose largest layer is most of it.

Weights are quantised one layer at a time before the model moves to its device: the device never holds the full model,
and the host frees each full weight as soon as it is packed. Quantised weights cannot take small updates, so they are
frozen, and an adapter must be trained beside them. Merging is refused: rounding the sum to 4 bits would lose most of what
was learned. The adapters load onto the full model (`snugfit.load_adapter`) and merge there.

Which library. nf4 is packed and unpacked by the kernels of bitsandbytes on every device, so the numbers are those of QLoRA
as people know it. torchao's NF4 unpacks through int64 indices (more than 16 bytes a weight), always quantises its scales
twice, and takes only layers of a multiple of 16384 weights. int8 needs no library: it is a division and a rounding.
The layer around them is ours (`frozen_linear.py`), because the libraries' layers are not sound in training: bitsandbytes'
`Linear8bitLt` holds its input where neither checkpointing nor offload can free it, its `Linear4bit` repacks its weights
at the first evaluation on CPUs with bf16 instructions and then has no gradient, and both change the dtype of biases.

Wrong when: the linear layers are small beside embeddings and head. DoRA with `adapter_dropout` keeps unpacked weights until
backward. Fidelity: different. Source: Dettmers et al., QLoRA, 2023 (arXiv:2305.14314); Dettmers et al., LLM.int8(), 2022
(arXiv:2208.07339); bitsandbytes 0.50, `nn/modules.py`, `autograd/_functions.py`; torchao 0.18, `nf4_tensor.py`.
"""

from __future__ import annotations

import logging

import torch
from torch import nn

from snugfit.errors import InputError
from snugfit.recipe import Recipe
from snugfit.techniques.adapter_layers import load_peft
from snugfit.techniques.frozen_linear import FrozenLinear, bitsandbytes_library, freeze_linear, table_of_scales
from snugfit.techniques.linear_layers import is_linear, linear_layers, tied_weights
from snugfit.techniques.true_precision import DTYPES

logger = logging.getLogger("snugfit")


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
    dtype = DTYPES[recipe.true_precision] if recipe.true_precision else None
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
    logger.info(
        "%s: %d linear layers packed %s, %.3f of their bytes remain; the libraries' own layers keep inputs or repack.",
        recipe.quantize, len(names), how, after / before,
    )  # fmt: skip
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
