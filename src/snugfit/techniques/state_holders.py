"""Each kind of object that can hold state: how what it holds is taken down and put back."""

from __future__ import annotations

import functools
import random
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from snugfit.techniques.reachable import slots_of

LARGE = 4096
"""Entries of a container that is looked into and copied; of a larger one only what was added is taken off again."""
LARGE_ARRAY_BYTES = 2**20
"""NumPy's arrays up to this size are copied; what writes into them cannot be seen."""
PLAIN = frozenset(
    {bool, int, float, complex, str, bytes, types.NoneType, Tensor, nn.Parameter, torch.dtype, torch.device}
)
"""Types that contain no other object."""
_FOREIGN = frozenset(
    {"torch", "numpy", "logging", "threading", "builtins", "_thread", "weakref", "re", "functools", "snugfit"}
)
"""Libraries whose objects are not looked into."""
_ABSENT = object()


class Holder:
    """One object with state. What it took down is a dict or a list wherever entries can be tensors."""

    def __init__(self, one: Any, title: str = "") -> None:
        self.one, self.title = one, title

    def take(self) -> Any:
        """Returns what it contains now."""
        raise NotImplementedError

    def put(self, old: Any) -> None:
        """Puts `old`, from `take`, back."""
        raise NotImplementedError

    def inside(self, content: Any) -> Iterable[Any]:
        """Returns those parts of its contents that may hold state themselves."""
        return content.values() if isinstance(content, dict) else content


class Table(Holder):
    """A dict, or the attributes of a module without those in `but`."""

    def __init__(self, one: dict[Any, Any], title: str = "", but: frozenset[str] = frozenset()) -> None:
        super().__init__(one, title)
        self._but = but
        self._plain: Any = OrderedDict if isinstance(one, OrderedDict) else dict  # a subclass may do more than store

    def take(self) -> dict[Any, Any]:
        """Returns a copy."""
        but = self._but
        if not but:
            return dict(self._plain.items(self.one))
        return {key: value for key, value in self.one.items() if key not in but}

    def put(self, old: dict[Any, Any]) -> None:
        """Deletes what was added, and sets what was replaced; the order of an ordered one, too."""
        table, but, plain = self.one, self._but, self._plain
        for key in [key for key in plain.keys(table) if key not in old and key not in but]:
            plain.__delitem__(table, key)
        if plain is OrderedDict and list(plain.keys(table)) != list(old):
            plain.clear(table)
        for key, value in old.items():
            if dict.get(table, key, _ABSENT) is not value:
                plain.__setitem__(table, key, value)


class Row(Holder):
    """A list or a deque."""

    def take(self) -> list[Any]:
        """Returns a copy."""
        return list(self.one)

    def put(self, old: list[Any]) -> None:
        """Gives it its entries back."""
        row = self.one
        if len(row) != len(old) or any(one is not other for one, other in zip(row, old, strict=True)):
            kind: Any = deque if isinstance(row, deque) else list
            kind.clear(row)
            kind.extend(row, old)


class Members(Holder):
    """A set."""

    def take(self) -> frozenset[Any]:
        """Returns its members."""
        return frozenset(self.one)

    def put(self, old: frozenset[Any]) -> None:
        """Gives it its members back."""
        if self.one != old:
            set.clear(self.one)
            set.update(self.one, old)


class Rows(Holder):
    """A tuple: it cannot change itself, but what is in it can."""

    def take(self) -> tuple[Any, ...]:
        """Returns it."""
        return tuple(self.one)

    def put(self, old: tuple[Any, ...]) -> None:
        """Does nothing: a tuple cannot be changed."""


class Long(Holder):
    """A list or dict of very many entries, of which only the length is kept: it is taken to grow at its end."""

    def take(self) -> int:
        """Returns its length."""
        return len(self.one)

    def put(self, old: int) -> None:
        """Removes what was appended."""
        while len(self.one) > old:
            self.one.popitem() if isinstance(self.one, dict) else self.one.pop()

    def inside(self, content: int) -> Iterable[Any]:
        """Returns nothing: its entries are too many to look into."""
        return ()


class Array(Holder):
    """An array of NumPy's."""

    def take(self) -> Any:
        """Returns a copy."""
        return self.one.copy()

    def put(self, old: Any) -> None:
        """Writes the values back."""
        np.copyto(self.one, old)

    def inside(self, content: Any) -> Iterable[Any]:
        """Returns nothing: numbers hold no state."""
        return ()


class Names(Holder):
    """Some names of a larger table: globals of a file."""

    def __init__(self, one: dict[str, Any], names: Collection[str]) -> None:
        super().__init__(one)
        self._names = names

    def take(self) -> dict[str, Any]:
        """Returns what they stand for."""
        return {name: self.one[name] for name in self._names if name in self.one}

    def put(self, old: dict[str, Any]) -> None:
        """Binds them to what they stood for."""
        for name, value in old.items():
            if self.one.get(name, _ABSENT) is not value:
                self.one[name] = value


class Attributes(Holder):
    """Attributes of a class, or slots of an object."""

    def __init__(self, one: Any, names: Collection[str], title: str = "") -> None:
        super().__init__(one, title)
        self._names = names

    def take(self) -> dict[str, Any]:
        """Returns their values; unset ones are left out."""
        table = vars(self.one) if isinstance(self.one, type) else None
        found = {
            name: getattr(self.one, name, _ABSENT) if table is None else table.get(name, _ABSENT)
            for name in self._names
        }
        return {name: value for name, value in found.items() if value is not _ABSENT}

    def put(self, old: dict[str, Any]) -> None:
        """Sets those that were replaced, and deletes those that were added."""
        for name, value in self.take().items():
            if name not in old:
                delattr(self.one, name)
            elif old[name] is not value:
                setattr(self.one, name, old[name])
        for name in old.keys() - self.take().keys():
            setattr(self.one, name, old[name])

    def inside(self, content: dict[str, Any]) -> Iterable[Any]:
        """Returns their values, and the `__dict__` of an object that has slots and attributes."""
        more = () if isinstance(self.one, type) else (getattr(self.one, "__dict__", None),)
        return [*content.values(), *more]


class Buffers(Table):
    """The buffers of a module."""


class Variable(Holder):
    """A variable of an enclosing function."""

    def take(self) -> list[Any]:
        """Returns its value; nothing where the variable is not assigned yet."""
        try:
            return [self.one.cell_contents]
        except ValueError:
            return []

    def put(self, old: list[Any]) -> None:
        """Gives it back what it was."""
        for value in old:
            if self.one.cell_contents is not value:
                self.one.cell_contents = value


class Numbers(Holder):
    """A generator of random numbers."""

    def __init__(self, one: Any, take: Callable[[], Any], put: Callable[[Any], Any]) -> None:
        super().__init__(one)
        self._take, self._put = take, put

    def take(self) -> Any:
        """Returns its state."""
        return self._take()

    def put(self, old: Any) -> None:
        """Sets its state."""
        self._put(old)

    def inside(self, content: Any) -> Iterable[Any]:
        """Returns nothing."""
        return ()


GLOBAL_NUMBERS = (
    Numbers(random, random.getstate, random.setstate),
    Numbers(np.random, functools.partial(np.random.get_state, legacy=False), np.random.set_state),
)
"""The global generators of Python and NumPy."""


def holder_of(value: Any) -> Holder | None:
    """Returns the holder for an object; None for modules, code, and whatever holds nothing that passes change."""
    kind: Any = type(value)
    made = _kind(kind)
    return None if made is None else made(value)


@functools.cache
def _kind(kind: Any) -> Callable[[Any], Holder | None] | None:
    """Returns what makes a holder of an object of this type."""
    if issubclass(kind, dict):
        return lambda one: Table(one) if len(one) <= LARGE else Long(one)
    if issubclass(kind, list):
        return lambda one: Row(one) if len(one) <= LARGE else Long(one)
    if issubclass(kind, deque):
        return Row
    if issubclass(kind, set):
        return Members
    if issubclass(kind, tuple) and not issubclass(kind, torch.Size):
        return lambda one: Rows(one) if 0 < len(one) <= LARGE else None
    if issubclass(kind, np.ndarray):
        return lambda one: Array(one) if one.flags.writeable and one.nbytes <= LARGE_ARRAY_BYTES else None
    if issubclass(kind, torch.Generator | random.Random | np.random.RandomState | np.random.Generator):
        return _generator
    if issubclass(kind, nn.Module | Tensor | type | types.ModuleType | types.FunctionType | types.MethodType):
        return None
    if kind.__module__.partition(".")[0] in _FOREIGN:
        return None
    slots, has_table = slots_of(kind), getattr(kind, "__dictoffset__", 0) != 0
    if slots:
        return lambda one: Attributes(one, slots)
    return (lambda one: Table(vars(one), kind.__name__)) if has_table else None


def _generator(one: Any) -> Numbers:
    if isinstance(one, torch.Generator | np.random.RandomState):
        return Numbers(one, one.get_state, one.set_state)
    if isinstance(one, random.Random):
        return Numbers(one, one.getstate, one.setstate)
    bits = one.bit_generator
    return Numbers(one, lambda: bits.state, functools.partial(setattr, bits, "state"))
