"""Batches as they are given to `snugfit.estimate`, made into tensors without memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from snugfit.errors import CannotSimulateError, InputError, RecipeError, warn
from snugfit.simulator.given_batches import Batches, batches_of
from snugfit.techniques.batches import map_tensors, parts_of, tensors_of
from snugfit.units import format_bytes


@contextlib.contextmanager
def said_how_it_was_read(given: Any) -> Iterator[None]:
    """Context that adds to errors how the batch was read: a list of batches as one, a sparse matrix as dense."""
    try:
        yield
    except (InputError, CannotSimulateError) as error:
        hints = []
        if _looks_like_several(given):
            hints.append(f"A list is one batch; where its {len(given)} items are batches, write batches=[...].")
        if _sparse(given):
            hints.append("The batch's sparse matrix was a dense one in the simulation, and in a run that it tried.")
        if hints and not isinstance(error, RecipeError):
            error.args = (" ".join([str(error), *hints]),)
        raise


def _sparse(given: Any) -> list[torch.Tensor]:
    return [tensor for one in batches_of(given) for tensor in tensors_of(one) if tensor.layout != torch.strided]


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


def has_values(batch: Any) -> bool:
    """Returns whether all tensors of a batch have values: none on meta, none only described."""
    described = len(list(tensors_of(_skeleton(batch)))) - len(list(tensors_of(batch)))
    return not described and not any(tensor.is_meta for tensor in tensors_of(batch))


def lives_on_host(batch: Any) -> bool:
    """Returns whether a tensor of the batch is on the host, so that a hand-written step moves it itself."""
    return any(tensor.device.type == "cpu" for one in batches_of(batch) for tensor in tensors_of(one))


def tell_of_sparse(given: Any) -> None:
    """Warns of sparse matrices in a batch: no operator on them is simulated, so they are counted dense."""
    for tensor in _sparse(given):
        dense, held = tensor.numel() * tensor.element_size(), sum(part.nbytes for part in parts_of(tensor))
        warn(
            f"the batch holds a sparse matrix ({str(tensor.layout).removeprefix('torch.')}, "
            f"{' x '.join(map(str, tensor.shape))}), which is counted dense, {format_bytes(dense)} where it takes "
            f"{format_bytes(held)}: operators on sparse matrices are not simulated. Trainer.step trains with the matrix as "
            "it is, so most steps take less than is predicted."
        )


def _skeleton(batch: Any) -> Any:
    return map_tensors(batch, _without_memory, lambda value: isinstance(value, torch.Tensor) or _is_pair(value))


def _without_memory(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor) and value.is_nested:
        raise InputError(
            "the batch holds a nested tensor, and operators on nested tensors are not simulated. Estimate and plan with a "
            "padded batch, which takes at least as much memory: torch.nested.to_padded_tensor(tensor, 0.0). Trainer.step "
            "takes it as it is."
        )
    if isinstance(value, torch.Tensor) and value.layout != torch.strided:
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
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
