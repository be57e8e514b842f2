"""What a block is given beside tensors: lists, dicts and objects that somebody may change before it is computed again.

Blocks change what they are given (HRNet its list of branches), and models change it between two blocks (the number of the
layer in a context). What these containers held is put back for the recomputation, and after it what they hold now. A
tensor in one that was written into since is gone, and that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

from snugfit.errors import InputError, about

_DEEPEST = 4
"""Containers within containers that are looked into."""
_MOST = 500
"""Containers that are looked into at all."""
_OF_OTHERS = ("torch", "builtins", "numpy")
"""Packages whose objects are values, or have a state that is no business of a model."""
_NO_STATE = (torch.nn.Module, type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


class GivenArguments:
    """The contents of containers among some arguments, as they are now."""

    def __init__(self, *arguments: Any) -> None:
        """Looks through arguments; tensors that are arguments themselves are autograd's to check."""
        self._contents: list[tuple[Any, Any]] = []
        self._tensors: list[tuple[Tensor, int]] = []
        seen: set[int] = set()
        for one in arguments:
            if not isinstance(one, Tensor):
                self._look(one, seen, 0)

    def __bool__(self) -> bool:
        """Whether there is anything that could change."""
        return bool(self._contents or self._tensors)

    def _look(self, value: Any, seen: set[int], depth: int) -> None:
        if isinstance(value, Tensor):
            self._tensors.append((value, value._version))
            return
        held = _held(value)
        if held is None or depth > _DEEPEST or len(seen) > _MOST or id(value) in seen:
            return
        seen.add(id(value))
        if not isinstance(value, tuple):
            self._contents.append((value, held))
        for one in held.values() if isinstance(held, dict) else held:
            self._look(one, seen, depth + 1)

    def ended(self) -> None:
        """Takes down how the first pass leaves the tensors: what it writes itself, it writes again."""
        self._tensors = [(tensor, tensor._version) for tensor, _ in self._tensors]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Context after which containers hold what they held when this was made."""
        try:
            yield
        finally:
            for value, held in self._contents:
                _put(value, held)

    @contextmanager
    def as_they_were(self, name: str) -> Iterator[None]:
        """Context in which containers hold what they did; `InputError` where a tensor of theirs was written into since."""
        for tensor, version in self._tensors:
            if tensor._version != version:
                with about("checkpoint"):
                    raise InputError(
                        f"block {name!r} was given a tensor of shape {list(tensor.shape)} in a list, dict or object, and it "
                        "was changed in place before the backward pass, so the block cannot be computed again as it was. "
                        "Give each block a tensor of its own (`x = x + 1` in place of `x += 1`), or name the blocks to "
                        "checkpoint without this one."
                    )
        present = [(value, _held(value)) for value, _ in self._contents]
        try:
            for value, held in self._contents:
                _put(value, held)
            yield
        finally:
            for value, held in present:
                _put(value, held)


class Again:
    """A forward method that is run again with the arguments as they were at first."""

    def __init__(self, name: str, forward: Callable[..., Any], given: GivenArguments) -> None:
        self._name, self._forward, self._given = name, forward, given
        self._first = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it."""
        if torch.compiler.is_compiling():
            return self._forward(*args, **kwargs)
        if self._first:
            self._first = False
            output = self._forward(*args, **kwargs)
            self._given.ended()
            return output
        with self._given.as_they_were(self._name):
            return self._forward(*args, **kwargs)


def _held(value: Any) -> Any:
    """What a container holds, copied; None for what is none."""
    kind = type(value)
    if kind is list or kind is dict or kind is tuple:
        return kind(value)
    if isinstance(value, _NO_STATE) or kind.__module__.partition(".")[0] in _OF_OTHERS:
        return None
    attributes = getattr(value, "__dict__", None)
    return dict(attributes) if type(attributes) is dict else None


def _put(value: Any, held: Any) -> None:
    if type(value) is list:
        value[:] = held
        return
    table = value if type(value) is dict else vars(value)
    table.clear()
    table.update(held)
