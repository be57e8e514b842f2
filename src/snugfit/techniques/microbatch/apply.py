"""Batches cut into pieces, and the weights by which their losses add up."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from snugfit.errors import InputError

LossWeight = Literal["samples", "sum", "tokens"] | Callable[[Any], Any]
LOSS_WEIGHTS = ("samples", "sum", "tokens")
"""Ways of combining losses that have a name."""
Split = Callable[[Any, int], list[Any]]
IGNORED_LABEL = -100
"""Label that torch's cross-entropy leaves out by default."""


def map_tensors(
    batch: Any, change: Callable[[Any], Any], is_leaf: Callable[[Any], bool] = lambda value: isinstance(value, Tensor)
) -> Any:
    """Returns a batch with a function applied to every tensor in it.

    Args:
        batch: A tensor, or tuples, lists, mappings and dataclasses of such; anything else is kept.
        change: What becomes of each tensor.
        is_leaf: What is changed in place of tensors.

    Returns:
        The same structure; mappings become dicts.
    """
    if is_leaf(batch):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(value, change, is_leaf) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [map_tensors(value, change, is_leaf) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if not _is_dataclass_instance(batch):
        return batch
    made = copy.copy(batch)  # in place of its constructor, which may do other things than store its arguments
    for name, value in _fields_of(batch):
        object.__setattr__(made, name, map_tensors(value, change, is_leaf))  # a frozen one, too
    return made


def _is_dataclass_instance(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields_of(value: Any) -> list[tuple[str, Any]]:
    names = [field.name for field in dataclasses.fields(value)]
    return [(name, getattr(value, name)) for name in names if hasattr(value, name)]


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """Goes through the tensors of a batch.

    Args:
        batch: A tensor, or tuples, lists, mappings and dataclasses of such; anything else has none.

    Yields:
        Each tensor, in order.
    """
    if isinstance(batch, Tensor):
        yield batch
        return
    parts: Iterable[Any] = ()
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, tuple | list):
        parts = batch
    elif _is_dataclass_instance(batch):
        parts = [value for _, value in _fields_of(batch)]
    for part in parts:
        yield from tensors_of(part)


def first_tensor(batch: Any) -> Tensor | None:
    """Returns the first tensor of a batch that has a dimension, or None.

    Args:
        batch: A tensor, or tuples, lists, mappings and dataclasses of such.

    Returns:
        The tensor whose dimension 0 is the batch's length.
    """
    return next((tensor for tensor in tensors_of(batch) if tensor.dim()), None)


def batch_length(batch: Any) -> int:
    """Returns the number of samples in a batch.

    Args:
        batch: A tensor, or tuples, lists and mappings of such.

    Returns:
        Dimension 0 of its first tensor.

    Raises:
        InputError: The batch holds no tensor with a dimension, or no sample.
    """
    tensor = first_tensor(batch)
    if tensor is None:
        raise InputError(
            f"the batch is a {type(batch).__name__} without a tensor; give a tensor, a tuple or a dict of tensors, "
            "or forward= and split= that know this batch."
        )
    if tensor.shape[0] == 0:
        raise InputError("the batch holds no sample; give at least one.")
    return int(tensor.shape[0])


def split_batch(batch: Any, size: int) -> list[Any]:
    """Cuts a batch along dimension 0 of every tensor that has the batch's length; the last piece may be smaller.

    Args:
        batch: A tensor, or tuples, lists and mappings of such.
        size: Samples in a piece.

    Returns:
        The pieces, views of the batch; tensors of other lengths go with every piece whole.
    """
    length = batch_length(batch)
    if size >= length:
        return [batch]
    return [cut(batch, start, size, length) for start in range(0, length, size)]


def cut(batch: Any, start: int, size: int, length: int) -> Any:
    """Returns one piece of a batch of this length, from a sample on."""

    def piece(tensor: Tensor) -> Tensor:
        return tensor[start : start + size] if tensor.dim() and tensor.shape[0] == length else tensor

    return map_tensors(batch, piece)


def loss_weights(pieces: list[Any], loss_weight: LossWeight) -> list[float | Tensor]:
    """Returns the factor of each microbatch's loss that makes their sum the loss of the whole batch.

    Args:
        pieces: The microbatches.
        loss_weight: `samples` (losses are means over samples), `sum` (they are sums), `tokens` (means over labels that are
            not ignored; labels are `batch["labels"]` or `batch[1]`), or a function of a microbatch giving its weight.

    Returns:
        One factor a microbatch; a tensor where counting on the host would make a device wait.
    """
    if loss_weight == "sum":
        return [1.0] * len(pieces)
    if len(pieces) == 1 and (loss_weight in LOSS_WEIGHTS or callable(loss_weight)):
        return [1.0]
    counts = loss_counts(pieces, loss_weight)
    total = sum(counts)
    if isinstance(total, Tensor):
        return [count / total for count in counts]
    if total == 0:
        raise InputError(
            "no label of this batch counts (all are ignored), so its loss is undefined; leave the batch out."
        )
    return [count / total for count in counts]


def loss_counts(pieces: list[Any], loss_weight: LossWeight) -> list[Any]:
    """Returns how much the loss of each microbatch counts, as `loss_weights` has it, before it is a share of anything.

    Args:
        pieces: The microbatches.
        loss_weight: As for `loss_weights`.

    Returns:
        One number a microbatch; a tensor where counting on the host would make a device wait.
    """
    if loss_weight == "sum":
        return [1.0] * len(pieces)
    if loss_weight == "samples":
        return [batch_length(piece) for piece in pieces]
    if loss_weight == "tokens":
        return [_known((_labels(piece) != IGNORED_LABEL).sum()) for piece in pieces]
    if not callable(loss_weight):
        raise InputError(f"loss_weight is {loss_weight!r}; give 'samples', 'sum', 'tokens' or a function of the batch.")
    return [_known(loss_weight(piece)) for piece in pieces]


def _labels(batch: Any) -> Tensor:
    labels = None
    if isinstance(batch, Mapping):
        labels = batch.get("labels")
    elif isinstance(batch, tuple | list) and len(batch) > 1:
        labels = batch[1]
    if not isinstance(labels, Tensor):
        raise InputError(
            "loss_weight='tokens' needs labels as batch['labels'] or batch[1]; give loss_weight as a function of the batch."
        )
    return labels


def _known(count: Any) -> Any:
    """A count as a number where the host can read it without waiting for a device; otherwise the tensor itself."""
    if isinstance(count, Tensor) and type(count) is Tensor and count.device.type == "cpu":
        return count.item()
    return count.to(torch.float32) if isinstance(count, Tensor) else count
