"""Batches cut into pieces, and the weights by which their losses add up."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

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

    `batch`: a tensor, or tuples, lists, mappings, dataclasses, packed sequences and other objects that hold such;
    anything else is kept.
    `is_leaf`: what is changed in place of tensors.
    The same structure, of the same classes; an object that holds tensors is copied. How long packed sequences are stays
    as it is, on the host, where torch wants it.
    """
    if is_leaf(batch):
        return change(batch)
    held = held_by(batch)
    if held is None:
        return batch
    return _made_of(batch, {name: map_tensors(value, change, is_leaf) for name, value in held.items()})


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """Yields the tensors of anything that `map_tensors` knows, in order; anything else has none."""
    if isinstance(batch, Tensor):
        yield batch
        return
    for part in (held_by(batch) or {}).values():
        yield from tensors_of(part)


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """Returns the tensors among an operator's arguments, those in lists included; asked too often for `tensors_of`."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(tensors_in(value))
    return found


def held_by(batch: Any) -> dict[Any, Any] | None:
    """What a part of a batch contains, by key or index; None where it is not a container that a batch is made of."""
    if isinstance(batch, PackedSequence):
        return {name: getattr(batch, name) for name in ("data", "sorted_indices", "unsorted_indices")}
    if isinstance(batch, Mapping):
        return dict(batch.items())
    if isinstance(batch, tuple | list):
        return dict(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in dataclasses.fields(batch)]
        return {name: getattr(batch, name) for name in names if hasattr(batch, name)}
    return dict(vars(batch)) if _is_holder(batch) else None


def _made_of(batch: Any, parts: dict[Any, Any]) -> Any:
    """A container of the same kind with other contents."""
    if isinstance(batch, PackedSequence):
        return PackedSequence(parts["data"], batch.batch_sizes, parts["sorted_indices"], parts["unsorted_indices"])
    if type(batch) is dict or (isinstance(batch, Mapping) and not isinstance(batch, MutableMapping)):
        return parts
    if isinstance(batch, tuple | list):
        values = list(parts.values())
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    made = copy.copy(batch)  # in place of its constructor, which may do other things than store its arguments
    for name, value in parts.items():
        if isinstance(made, MutableMapping):
            try:
                made[name] = value
            except NotImplementedError:
                # A TensorDict brings what it gets to its device, and meta tensors cannot go there.
                return parts
        else:
            object.__setattr__(made, name, value)  # a frozen one, too
    return made


def _is_holder(value: Any) -> bool:
    """Whether a value is an object of the user's own batch class: not a library's, with tensors in its attributes."""
    return may_hold(type(value)) and any(_has_tensor(one) for one in vars(value).values())


def may_hold(kind: type) -> bool:
    """Returns whether objects of a class may hold tensors in their attributes: not of torch's, Python's, or models."""
    if getattr(kind, "__dictoffset__", 0) == 0 or issubclass(kind, nn.Module | type):
        return False
    # with its bases: a class that a metaclass makes names the metaclass' module
    return not all(map(_is_of_libraries, kind.__mro__))


def _is_of_libraries(kind: type) -> bool:
    library = kind.__module__.partition(".")[0]
    return library in ("torch", "numpy") or (library in sys.stdlib_module_names and kind is not SimpleNamespace)


def _has_tensor(value: Any) -> bool:
    """Whether a value is a tensor or a container of some. Objects inside objects are not searched: they may be circular."""
    if isinstance(value, Mapping):
        return any(map(_has_tensor, value.values()))
    return isinstance(value, Tensor) or (isinstance(value, tuple | list) and any(map(_has_tensor, value)))


def first_tensor(batch: Any) -> Tensor | None:
    """Returns the tensor whose dimension 0 is the batch's length, or None.

    It is the first one with a dimension and one number for each place: a sparse matrix or a packed sequence says how
    many samples there are only where nothing else does.
    """
    dense = (tensor for tensor in _outside_of_sequences(batch) if tensor.layout == torch.strided)
    sparse = (tensor for tensor in _outside_of_sequences(batch) if tensor.layout != torch.strided)
    return next((tensor for tensor in itertools.chain(dense, sparse) if tensor.dim()), None)


def _outside_of_sequences(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif not isinstance(batch, PackedSequence):
        for part in (held_by(batch) or {}).values():
            yield from _outside_of_sequences(part)


def why_uncut(batch: Any) -> str | None:
    """Returns, in words, what of a batch only its owner knows how to cut into samples; None where all of it can be cut."""
    if isinstance(batch, Tensor):
        return None if batch.layout == torch.strided else "a sparse matrix"
    if isinstance(batch, PackedSequence):
        return "a PackedSequence"
    parts = held_by(batch)
    if not isinstance(batch, Mapping | tuple | list) and not dataclasses.is_dataclass(batch) and _is_holder(batch):
        return f"a {type(batch).__name__}"
    tensor = first_tensor(batch)
    for part in (parts or {}).values():
        reason = why_uncut(part)
        # What does not vary with samples goes with every piece whole: a graph that all samples have in common.
        if reason and not (isinstance(part, Tensor) and tensor is not None and part.shape[:1] != tensor.shape[:1]):
            return reason
    return None


def batch_length(batch: Any) -> int:
    """Returns the number of samples in a batch, dimension 0 of its first tensor; `InputError` where there is none."""
    tensor = first_tensor(batch)
    if tensor is None and isinstance(batch, PackedSequence):
        return int(batch.batch_sizes[0])
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

    Returns the pieces, views of the batch; tensors of other lengths go with every piece whole.
    """
    length = batch_length(batch)
    if size >= length:
        return [batch]
    reason = why_uncut(batch)
    if reason is not None:
        raise InputError(
            f"the batch holds {reason}, and nobody knows which part of it belongs to which sample, so it cannot be cut into "
            f"microbatches of {size}. Give split=fn(batch, size), which returns a list of batches, or no microbatch_size."
        )
    return [cut(batch, start, size, length) for start in range(0, length, size)]


def cut(batch: Any, start: int, size: int, length: int) -> Any:
    """Returns the piece of a batch that starts at a sample."""

    def piece(tensor: Tensor) -> Tensor:
        goes_along = tensor.layout != torch.strided or not tensor.dim() or tensor.shape[0] != length
        return tensor if goes_along else tensor[start : start + size]

    return map_tensors(batch, piece)


def loss_weights(pieces: list[Any], loss_weight: LossWeight) -> list[float | Tensor]:
    """Returns the factor of each microbatch's loss that makes their sum the loss of the whole batch.

    `loss_weight`: `samples` (losses are means over samples), `sum` (they are sums), `tokens` (means over labels that
    are not ignored; labels are `batch["labels"]` or `batch[1]`), or a function of a microbatch giving its weight.
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
    """Returns the numerators of `loss_weights`: how much each microbatch counts before it is divided by the sum."""
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
