"""Batches as they are given to `snugfit.estimate`, made into tensors without memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from snugfit.errors import CannotSimulateError, InputError, RecipeError
from snugfit.private_torch import sparse_layouts
from snugfit.simulator.given_batches import Batches, batches_of
from snugfit.techniques.batches import map_tensors, tensors_of


@contextlib.contextmanager
def said_how_it_was_read(given: Any) -> Iterator[None]:
    """Context that adds to errors how the batch was read: a list of batches as one, a sparse matrix as dense."""
    try:
        yield
    except (InputError, CannotSimulateError) as error:
        hints = []
        if _looks_like_several(given):
            hints.append(f"A list is one batch; where its {len(given)} items are batches, write batches=[...].")
        if hints and not isinstance(error, RecipeError):
            error.args = (" ".join([str(error), *hints]),)
        raise


def _looks_like_several(given: Any) -> bool:
    """Whether the items of a list are built alike, as batches are and most lists in a batch are not."""
    if not isinstance(given, list) or not given:
        return False
    kinds = {
        (type(one), tuple((tensor.dim(), tensor.dtype) for tensor in tensors_of(one))) for one in map(_skeleton, given)
    }
    return len(kinds) == 1 and bool(kinds.pop()[1])


def skeleton_of(given: Any) -> Any:
    """Returns a batch (or `Batches`) with meta tensors in place of tensors and of (shape, dtype) pairs."""
    return Batches(tuple(map(_skeleton, given.each))) if isinstance(given, Batches) else _skeleton(given)


def shapes_of(given: Any) -> Any:
    """Returns the same, or the error of what cannot be simulated, for a run that goes on without an answer."""
    try:
        return skeleton_of(given)
    except Exception as error:  # of a batch class of the user's, too
        return error


def has_values(batch: Any) -> bool:
    """Returns whether all tensors of a batch have values: none on meta, none only described."""
    described = len(list(tensors_of(_skeleton(batch)))) - len(list(tensors_of(batch)))
    return not described and not any(tensor.is_meta for tensor in tensors_of(batch))


def lives_on_host(batch: Any) -> bool:
    """Returns whether a tensor of the batch is on the host, so that a hand-written step moves it itself."""
    return any(tensor.device.type == "cpu" for one in batches_of(batch) for tensor in tensors_of(one))


def _skeleton(batch: Any) -> Any:
    return map_tensors(batch, _without_memory, lambda value: isinstance(value, torch.Tensor) or _is_pair(value))


def _without_memory(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor) and value.is_nested:
        raise InputError(
            "the batch holds a nested tensor, and operators on nested tensors are not simulated. Estimate and plan with a "
            "padded batch, which takes at least as much memory: torch.nested.to_padded_tensor(tensor, 0.0). Trainer.step "
            "takes it as it is."
        )
    if isinstance(value, torch.Tensor):
        return sparse_layouts.without_memory(value)
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
