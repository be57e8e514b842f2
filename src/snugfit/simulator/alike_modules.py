"""Whether modules are alike: the same classes, weights of the same layout, the same settings, but for their number.

Layers of a model often know their number, for the cache of their keys and values; so whole numbers may grow by one from one
to the next. Objects that are not plain data compare by identity: a config that all layers share is the same for all.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

_PLAIN = (float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size, type)
_CHANCES = ("StochasticDepth", "DropPath")
"""Modules whose chance to leave a block out grows with depth; what they do is the same for all chances but 0 and 1."""
_DEEPEST = 4
"""Containers inside of each other that are looked into."""


def rows_alike(modules: Sequence[nn.Module]) -> Iterator[tuple[int, int]]:
    """Yields the rows of neighbours that are alike: the position of the first, and how many they are."""
    described = [_described(module) for module in modules]
    first = 0
    for number in range(1, len(modules) + 1):
        if number == len(modules) or not _follows(described[number - 1], described[number]):
            yield first, number - first
            first = number


def _described(module: nn.Module) -> Any:
    seen: dict[int, int] = {}
    return [(name, _module(one, seen)) for name, one in module.named_modules(remove_duplicate=False)]


def _module(module: nn.Module, seen: dict[int, int]) -> Any:
    if id(module) in seen:
        return seen[id(module)]
    seen[id(module)] = len(seen)
    chance = type(module).__name__ in _CHANCES
    values = [
        (name, "some" if chance and type(value) is float and 0 < value < 1 else _value(value, seen, _DEEPEST))
        for name, value in sorted(vars(module).items())
        if name != "_modules"
    ]
    return type(module), values


def _value(value: Any, seen: dict[int, int], depth: int) -> Any:
    """A value as it compares: what it holds, or which object it is."""
    kind = type(value)
    if kind is int or kind in _PLAIN:
        return value if kind is int else (kind, value)
    if isinstance(value, torch.Tensor):
        known = str(seen.setdefault(id(value), len(seen)))
        return kind, str((value.shape, value.stride(), value.dtype, value.device, value.requires_grad)), known
    if depth:
        within = functools.partial(_value, seen=seen, depth=depth - 1)
        if isinstance(value, Mapping):
            return kind, [(within(key), within(one)) for key, one in value.items()]
        if isinstance(value, list | tuple):
            return kind, [within(one) for one in value]
        if isinstance(value, set | frozenset):
            return kind, sorted(map(repr, value))
        if isinstance(value, functools.partial):
            return kind, within(value.func), within(value.args), within(value.keywords)
        if isinstance(value, types.FunctionType) and value.__closure__:
            return kind, value.__code__, [within(cell.cell_contents) for cell in value.__closure__]
    return kind, str(id(value))


def _follows(one: Any, other: Any) -> bool:
    """Whether two descriptions are equal but for whole numbers that grow by one."""
    if type(one) is int and type(other) is int:
        return other - one in (0, 1)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(_follows, one, other))
    return bool(one == other)
