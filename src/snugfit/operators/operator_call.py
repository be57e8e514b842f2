"""One call of an operator, described by what it depends on: layouts of its tensors, its numbers and its flags, no values.

A call can be compared, named for a file, made on real tensors of the same layout, and changed in one of its sizes. Numbers
that only scale values (a learning rate, an epsilon) are all the same here, so that they do not make another call.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

_LIST, _TUPLE = "list", "tuple"
_AS_THEY_ARE = (int, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout)
_ANY_NUMBER = 0.5
ALIGNMENT = 16
"""Elements: where a view begins inside its storage matters to kernels only as far as its alignment goes."""
BY_GRADIENT = (torch.ops.aten.mkldnn_rnn_layer.default, torch.ops.aten.mkldnn_rnn_layer_backward.default)
"""Operators that do other things where gradients are recorded."""
_BY_VALUE = ("upsample", "interpolate", "arange", "linspace", "logspace", "range", "grid")


class Layout(NamedTuple):
    """A tensor without its values."""

    shape: tuple[int, ...]
    """Its sizes."""
    stride: tuple[int, ...]
    """Its strides, in elements."""
    offset: int
    """Where it begins in its storage, in elements, as far as alignment goes."""
    dtype: torch.dtype
    """Its type."""
    storage: int
    """Which of the call's storages it lies in; arguments may share one."""

    @property
    def elements(self) -> int:
        """Elements from the beginning of the storage to the tensor's end."""
        return self.offset + extent(self.shape, self.stride)

    @property
    def nbytes(self) -> int:
        """Bytes that it spans."""
        return extent(self.shape, self.stride) * self.dtype.itemsize


class Call(NamedTuple):
    """An operator and its arguments."""

    operator: Any
    """The overload."""
    arguments: tuple[Any, ...]
    """Positional arguments: `Layout` for tensors, `(list or tuple, parts...)` for sequences, the rest as it is."""
    named: tuple[tuple[str, Any], ...]
    """Keyword arguments in the same form."""
    gradients: bool | None
    """Whether gradients are recorded, for operators that ask; None for all others."""

    @property
    def name(self) -> str:
        """The operator's name."""
        return str(self.operator)

    def digest(self) -> str:
        """Returns a name for the call that is the same in every process."""
        text = repr((self.name, self.arguments, self.named, self.gradients))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def layouts(self) -> list[Layout]:
        """Returns its tensors in order."""
        found: list[Layout] = []
        _collect((*self.arguments, *(value for _, value in self.named)), found)
        return found

    def changed(self, change: Callable[[Any], Any]) -> Call:
        """Returns the call with `change` applied to each `Layout` and plain value among its arguments."""
        return self._replace(
            arguments=tuple(_map(value, change) for value in self.arguments),
            named=tuple((name, _map(value, change)) for name, value in self.named),
        )

    def on(self, device: torch.device, fill: int = 0) -> tuple[list[Any], dict[str, Any]]:
        """Returns positional and keyword arguments with real tensors on a device, filled with one value."""
        sizes: dict[int, int] = {}
        for layout in self.layouts():
            sizes[layout.storage] = max(sizes.get(layout.storage, 0), layout.elements * layout.dtype.itemsize)
        storages = {
            number: torch.zeros(size, dtype=torch.uint8, device=device).untyped_storage()
            for number, size in sizes.items()
        }

        def make(value: Any) -> Any:
            if isinstance(value, Layout):
                made = torch.empty(0, dtype=value.dtype, device=device)
                made.set_(storages[value.storage], value.offset, value.shape, value.stride)
                return made.fill_(fill) if fill else made
            if isinstance(value, tuple):
                parts = [make(part) for part in value[1:]]
                return parts if value[0] == _LIST else tuple(parts)
            return value

        return [make(value) for value in self.arguments], {name: make(value) for name, value in self.named}


def extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Returns how many elements lie between the first and the last of a tensor, both counted."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def describe(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], gradients: bool | None) -> Call | None:
    """Returns a call by what it depends on.

    `gradients`: whether gradients are recorded, for operators that ask; None for all others.
    The call; None where it has arguments that cannot be made anew (a sparse tensor, an object of a library).
    """
    storages: dict[tuple[int, int], int] = {}
    by_value = any(part in operator._opname for part in _BY_VALUE)
    try:
        return Call(
            operator,
            tuple(_described(value, storages, by_value) for value in args),
            tuple((name, _described(value, storages, by_value)) for name, value in sorted(kwargs.items())),
            gradients,
        )
    except _CannotDescribe:
        return None


class _CannotDescribe(Exception):
    pass


def _described(value: Any, storages: dict[tuple[int, int], int], by_value: bool) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized or value.device.type != "cpu":
            raise _CannotDescribe
        # Two views that begin at different places never count as one storage: here they could overlap.
        place = (value.untyped_storage()._cdata, int(value.storage_offset()))
        storage = storages.setdefault(place, len(storages))
        offset = int(value.storage_offset()) % ALIGNMENT
        return Layout(tuple(value.shape), value.stride(), offset, value.dtype, storage)
    if isinstance(value, float):
        plain = by_value or value.is_integer() or not math.isfinite(value)
        return value if plain else math.copysign(_ANY_NUMBER, value)
    if isinstance(value, list | tuple):
        kind = _LIST if isinstance(value, list) else _TUPLE
        return (kind, *(_described(part, storages, by_value) for part in value))
    if isinstance(value, torch.Generator):
        return None
    if isinstance(value, _AS_THEY_ARE):
        return value
    raise _CannotDescribe


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple) and not isinstance(value, Layout):
        return (value[0], *(_map(part, change) for part in value[1:]))
    return change(value)


def _collect(values: Sequence[Any], found: list[Layout]) -> None:
    for value in values:
        if isinstance(value, Layout):
            found.append(value)
        elif isinstance(value, tuple):
            _collect(value[1:], found)
