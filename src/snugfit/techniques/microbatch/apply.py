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


def map_tensors(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Returns a batch with a function applied to every tensor in it.

    Args:
        batch: A tensor, or tuples, lists, mappings and dataclasses of such; anything else is kept.
        change: What becomes of each tensor.

    Returns:
        The same structure; mappings become dicts.
    """
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(value, change) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [map_tensors(value, change) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if is_dataclass_instance(batch):
        return with_fields(batch, lambda value: map_tensors(value, change))
    return batch


def is_dataclass_instance(value: Any) -> bool:
    """Returns whether a value is an object of a dataclass.

    Args:
        value: Anything.
    """
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def with_fields(value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns a copy of a dataclass object with a function applied to its fields; frozen ones included.

    Args:
        value: The object.
        change: What becomes of each field's value.
    """
    made = copy.copy(value)  # in place of its constructor, which may do other things than store its arguments
    for field in dataclasses.fields(value):
        if hasattr(value, field.name):
            object.__setattr__(made, field.name, change(getattr(value, field.name)))
    return made


def parts_of(batch: Any) -> Iterable[Any]:
    """Returns what a batch consists of; nothing for anything but tuples, lists, mappings and dataclasses.

    Args:
        batch: A batch, or a part of one.
    """
    if isinstance(batch, Mapping):
        return batch.values()
    if isinstance(batch, tuple | list):
        return batch
    if is_dataclass_instance(batch):
        return [getattr(batch, field.name, None) for field in dataclasses.fields(batch)]
    return ()


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """Goes through the tensors of a batch.

    Args:
        batch: A tensor, or tuples, lists, mappings and dataclasses of such; anything else has none.

    Yields:
        Each tensor, in order.
    """
    if isinstance(batch, Tensor):
        yield batch
    else:
        for part in parts_of(batch):
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
    if loss_weight != "tokens" and not callable(loss_weight) and loss_weight != "samples":
        raise InputError(f"loss_weight is {loss_weight!r}; give 'samples', 'sum', 'tokens' or a function of the batch.")
    if len(pieces) == 1:
        return [1.0]
    if loss_weight == "samples":
        counts: list[Any] = [batch_length(piece) for piece in pieces]
    elif loss_weight == "tokens":
        counts = [_known((_labels(piece) != IGNORED_LABEL).sum()) for piece in pieces]
    else:
        counts = [_known(loss_weight(piece)) for piece in pieces]
    total = sum(counts)
    if isinstance(total, Tensor):
        return [count / total for count in counts]
    if total == 0:
        raise InputError(
            "no label of this batch counts (all are ignored), so its loss is undefined; leave the batch out."
        )
    return [count / total for count in counts]


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
