"""What a model takes and gives: image size, channels, tokens, number of classes, found from structure and metadata."""

from __future__ import annotations

from typing import Any

import torch

from snugfit.errors import InputError, SequenceTooLongError
from snugfit.workloads import hf_sizes
from snugfit.workloads.heads import LAYERS_WITH_CLASSES, outputs_of

_TORCHVISION_SIZE = 224
"""Crop size of ImageNet training that torchvision's classification models share where nothing else is said."""

_SEQUENCE = 512
"""Tokens of a sequence where nothing is said and the model takes as many."""


def input_size(model: torch.nn.Module, spec: str) -> int | None:
    """Returns height and width in pixels that a model expects; None: unknown, images keep their own."""
    if spec.startswith("hf:"):
        sides = hf_sizes.image_sides(model.config)
        return _TORCHVISION_SIZE if sides is None else sides[0]
    own = _side(getattr(model, "image_size", None)) or _side(getattr(model, "img_size", None))
    if own is not None:
        return own
    if spec.startswith("timm:"):
        embedded = _side(getattr(getattr(model, "patch_embed", None), "img_size", None))
        metadata = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
        return embedded or _side(metadata.get("input_size"))
    if spec.startswith("torchvision:"):
        return published_side(spec, "crop_size") or _TORCHVISION_SIZE
    return None


def check_side(model: torch.nn.Module, spec: str, side: int) -> None:
    """Raises for images of another size than the one that a model of a library is built for, and says how it is built."""
    patches: Any = getattr(model, "patch_embed", None)
    built, argument = None, "image_size"
    if spec.startswith("torchvision:"):
        built = _side(getattr(model, "image_size", None))
    elif spec.startswith("timm:") and getattr(patches, "strict_img_size", False):
        built, argument = _side(patches.img_size), "img_size"
    if built is not None and built != side:
        raise InputError(
            f"{spec!r} is built for images of {built} x {built}, not {side}. Give --model-arg {argument}={side} beside "
            f"--image-size {side}, which builds it for them."
        )


def _side(size: Any) -> int | None:
    """One side of `224`, `(224, 224)` or `(3, 224, 224)`."""
    if isinstance(size, list | tuple | torch.Size) and size:
        size = size[-1]
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None


def published_weights(spec: str) -> Any:
    """Returns the best weights that torchvision publishes for a model, or None."""
    from torchvision import models

    try:
        return models.get_model_weights(spec.partition(":")[2]).DEFAULT
    except (ValueError, AttributeError):  # a model without published weights
        return None


def published_side(spec: str, field: str) -> int | None:
    """Returns the image side of torchvision's weights, by a field of their transforms."""
    weights = published_weights(spec)
    return None if weights is None else _side(getattr(weights.transforms(), field, None))


def input_channels(model: torch.nn.Module) -> int:
    """Returns the input channels of the first convolution, or 3 where there is none."""
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            return module.in_channels
    return 3


def output_classes(model: torch.nn.Module) -> int | None:
    """Returns the outputs of the last Linear or Conv layer, None where there is none."""
    for module in reversed(list(model.modules())):
        if isinstance(module, LAYERS_WITH_CLASSES):
            return outputs_of(module)
    return None


def token_limit(model: torch.nn.Module) -> int | None:
    """Returns how many tokens a sequence may have.

    Its `max_position_embeddings`, less what some models (RoBERTa's kin) keep at the front of their table of positions
    for padding; None where nothing says it.
    """
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    longest = getattr(config, "max_position_embeddings", None)
    if not isinstance(longest, int) or longest < 1:
        return None
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            return longest if module.padding_idx is None else longest - module.padding_idx - 1
    return longest


def vocabulary_size(model: torch.nn.Module) -> int | None:
    """Returns the rows of the input embedding, None where there is none."""
    find = getattr(model, "get_input_embeddings", None)
    try:
        embedding = find() if callable(find) else None
    except NotImplementedError:
        embedding = None
    if embedding is None:
        embedding = next((module for module in model.modules() if isinstance(module, torch.nn.Embedding)), None)
    rows = getattr(embedding, "num_embeddings", None)
    return rows if isinstance(rows, int) else None


def sequence_length(model: torch.nn.Module, seq_len: int | None) -> int:
    """Returns how many tokens a sequence has: `seq_len`, else 512 or what the model takes at most."""
    longest = token_limit(model)
    if seq_len is None:
        return min(_SEQUENCE, longest or _SEQUENCE)
    if longest is not None and seq_len > longest:
        raise SequenceTooLongError(f"--seq-len is {seq_len}; the model takes at most {longest} tokens.")
    return seq_len
