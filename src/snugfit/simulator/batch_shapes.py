"""Batches as they are given to `snugfit.estimate`, made into tensors without memory."""

from __future__ import annotations

from typing import Any

import torch

from snugfit.errors import InputError
from snugfit.techniques.microbatch.apply import map_tensors, tensors_of


def skeleton_of(batch: Any) -> Any:
    """Returns a batch with meta tensors in place of tensors and of (shape, dtype) pairs.

    A list is a list of batches; but a list of tensors of different kinds, as a `DataLoader` gives it, is one batch.

    Args:
        batch: Tensors or pairs in any nesting of tuples, lists and dicts.

    Returns:
        One batch, or a list of batches.

    Raises:
        InputError: The batch is empty, or a pair is not understood.
    """
    if not isinstance(batch, list):
        return _skeleton(batch)
    if not batch:
        raise InputError("the list of batches is empty; give at least one batch.")
    made = [_skeleton(one) for one in batch]
    kinds = {(one.dim(), one.dtype) if isinstance(one, torch.Tensor) else None for one in made}
    return tuple(made) if None not in kinds and len(kinds) > 1 else made


def lives_on_host(batch: Any) -> bool:
    """Returns whether a batch has a tensor on the host, from where a hand-written step moves it itself.

    Args:
        batch: As it was given.

    Returns:
        False where all tensors are on a device, on meta, or only described.
    """
    return any(tensor.device.type == "cpu" for tensor in tensors_of(batch))


def _skeleton(batch: Any) -> Any:
    return map_tensors(batch, _without_memory, lambda value: isinstance(value, torch.Tensor) or _is_pair(value))


def _without_memory(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    shape, dtype = value
    if any(size < 0 for size in shape):
        raise InputError(f"the shape {tuple(shape)} has a negative size. Give sizes of 0 and more.")
    return torch.empty(tuple(shape), dtype=dtype, device="meta")


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[1], torch.dtype)
        and isinstance(value[0], tuple | list | torch.Size)
        and all(isinstance(size, int) for size in value[0])
    )
