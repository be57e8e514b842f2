"""What code keeps from one forward pass to the next, taken down and put back: for passes that are run once more.

Attributes and buffers of modules (and of plain objects that they hold), lists, dicts, sets and deques in them, variables of
closures, containers that a forward method or a hook names among its globals, generators of random numbers of their own, and
the global ones of Python and NumPy. Torch's are the business of whoever runs the pass. What is reassigned, appended or
removed is put back by itself; a tensor that is written into needs a copy from before. Parameters are no such state.

Not looked into are the insides of libraries' objects, containers of more than `LARGE` entries (their length is watched) and
what code reaches by the name of another module.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import pickle
import random
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from snugfit.private_torch import FakeTensor
from snugfit.techniques.packed_weight import PackedWeight

MOST = 4096
"""Holders of state that are looked into, the nearest first."""
LARGE = 4096
"""Entries of a container that is copied each time."""
_TABLES = (dict, OrderedDict, defaultdict, Counter)
_ROWS = (list, deque)
_CONTAINERS = frozenset({*_TABLES, *_ROWS, set})
_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}
"""What torch itself keeps in a module: in buffers passes write, the rest they leave alone."""
_FOREIGN = ("torch", "numpy", "logging", "threading", "builtins", "_thread", "weakref", "re", "functools", "snugfit")
"""Libraries whose objects are not looked into."""
_ABSENT = object()

Place = tuple[int, Any]
"""Number of a holder, and the key or index in it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """What each holder had at a moment."""

    held: list[Any]
    """By holder; the objects themselves."""
    copies: dict[Place, Tensor]
    """Numbers of tensors that passes write into."""


class ForwardState:
    """The state that a module reaches."""

    def __init__(self, module: nn.Module, without_buffers: Iterable[nn.Module] = ()) -> None:
        """Finds everything that can hold state.

        Args:
            module: A module, those inside of it included.
            without_buffers: Those of them whose buffers are somebody else's business.
        """
        self._holders = [*_of_all(), *_holders(list(module.modules()), set(without_buffers))]
        self._overwritten: frozenset[Place] | None = None

    def take(self) -> Contents:
        """Returns what every holder has, with copies of tensors that passes write into; before `learn`, of all tensors."""
        held = [holder.take() for holder in self._holders]
        places = [place for place, _ in _tensors(held)] if self._overwritten is None else self._overwritten
        entries = ((place, _entry(held[place[0]], place[1])) for place in places)
        return Contents(held, {place: one.detach().clone() for place, one in entries if isinstance(one, Tensor)})

    def learn(self, before: Contents, written: Container[int]) -> None:
        """Finds out from a first pass which tensors passes write into, and puts everything back.

        Args:
            before: From `take`, before that pass.
            written: Storages (`_cdata`) that operators have said they write into.
        """
        drawn = [
            not isinstance(holder, _Numbers) or pickle.dumps(holder.take()) != pickle.dumps(old)
            for holder, old in zip(self._holders, before.held, strict=True)
        ]
        self.put(before)
        changed = {}
        for (at, key), copy in before.copies.items():
            tensor = before.held[at][key]
            # Kernels change running statistics without saying so.
            if tensor.untyped_storage()._cdata in written or not same_numbers(tensor, copy):
                changed[at, key] = tensor
                _write_back(tensor, copy)
        self._overwritten = frozenset(changed)
        # Asking a generator takes longer than all the rest, so those that were not drawn from are left alone.
        self._holders = [holder if moved else _NOTHING for holder, moved in zip(self._holders, drawn, strict=True)]

    def put(self, contents: Contents) -> None:
        """Puts back what every holder had, but not the numbers in tensors.

        Args:
            contents: From `take`.
        """
        for holder, old in zip(self._holders, contents.held, strict=True):
            holder.put(old)

    @contextmanager
    def as_it_was(self, contents: Contents) -> Iterator[None]:
        """Context in which everything is as it was taken down, for one more pass; then as it is now.

        Args:
            contents: From `take`; can be used again.

        Yields:
            Nothing.
        """
        now = Contents([holder.take() for holder in self._holders], {})
        then = Contents([_copied(one) for one in contents.held], {})
        for (at, key), copy in contents.copies.items():
            then.held[at][key] = copy.clone()
        self.put(then)
        try:
            yield
        finally:
            self.put(now)

    def written(self, before: Contents) -> dict[Place, int]:
        """Returns how often each tensor that nobody copies was written into.

        Args:
            before: From `take`.
        """
        return {place: tensor._version for place, tensor in _tensors(before.held) if place not in before.copies}

    def name(self, place: Place) -> str:
        """Returns what a person calls an entry of a holder.

        Args:
            place: From `written`.
        """
        return str(self._holders[place[0]].name(place[1]))


def same_numbers(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors hold the same, as far as they have numbers.

    Args:
        one: A tensor.
        other: Another one, or a copy from before.
    """
    if isinstance(one, FakeTensor) or one.is_meta or one.layout != torch.strided:
        return True
    return one.shape == other.shape and torch.equal(one, other)


def _write_back(tensor: Tensor, numbers: Tensor) -> None:
    with torch.no_grad():
        if tensor.shape == numbers.shape:
            tensor.copy_(numbers)
        else:  # an observer gives its buffers their size in the first pass
            tensor.data = numbers.clone()


def _tensors(held: list[Any]) -> Iterator[tuple[Place, Tensor]]:
    for at, content in enumerate(held):
        if isinstance(content, dict | list):
            for key, value in content.items() if isinstance(content, dict) else enumerate(content):
                if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and not value.is_inference():
                    yield (at, key), value


def _entry(content: Any, key: Any) -> Any:
    if isinstance(content, dict):
        return content.get(key)
    return content[key] if isinstance(content, list) and key < len(content) else None


def _copied(content: Any) -> Any:
    return content.copy() if isinstance(content, dict | list | set) else content


class _Table:
    """A dict: of a module or another object, or one of their own; only some entries of it where `keys` says so."""

    def __init__(self, table: dict[Any, Any], title: str, but: frozenset[str] = frozenset()) -> None:
        self._table, self._title, self._but = table, title, but

    def take(self) -> dict[Any, Any]:
        if not self._but:
            return dict(self._table)
        return {key: value for key, value in self._table.items() if key not in self._but}

    def put(self, old: dict[Any, Any]) -> None:
        table, but = self._table, self._but
        for key in [key for key in table if key not in old and key not in but]:
            del table[key]
        for key, value in old.items():
            if table.get(key, _ABSENT) is not value:
                table[key] = value

    def name(self, key: Any) -> str:
        return f"{self._title}.{key}" if isinstance(key, str) else f"{self._title}[{key!r}]"


class _Row:
    """A list or a deque."""

    def __init__(self, row: Any, title: str) -> None:
        self._row, self._title = row, title

    def take(self) -> list[Any]:
        return list(self._row)

    def put(self, old: list[Any]) -> None:
        row = self._row
        if len(row) != len(old) or any(one is not other for one, other in zip(row, old, strict=True)):
            row.clear()
            row.extend(old)

    def name(self, key: Any) -> str:
        return f"{self._title}[{key}]"


class _Set:
    """A set."""

    def __init__(self, members: set[Any], title: str) -> None:
        self._members, self._title = members, title

    def take(self) -> set[Any]:
        return set(self._members)

    def put(self, old: set[Any]) -> None:
        if self._members != old:
            self._members.clear()
            self._members.update(old)

    def name(self, key: Any) -> str:
        return self._title


class _Variable:
    """A variable of an enclosing function."""

    def __init__(self, cell: types.CellType, title: str) -> None:
        self._cell, self._title = cell, title

    def take(self) -> Any:
        return _content(self._cell)

    def put(self, old: Any) -> None:
        self._cell.cell_contents = old

    def name(self, key: Any) -> str:
        return self._title


class _Numbers:
    """A generator of random numbers."""

    def __init__(self, take: Callable[[], Any], put: Callable[[Any], Any]) -> None:
        self.take, self.put = take, put


class _Nothing:
    """In the place of what need not be kept."""

    def take(self) -> None:
        return None

    def put(self, old: None) -> None:
        return None


_NOTHING = _Nothing()


def _of_all() -> list[_Numbers]:
    """The global generators of Python and NumPy."""
    return [
        _Numbers(random.getstate, random.setstate),
        _Numbers(functools.partial(np.random.get_state, legacy=False), np.random.set_state),
    ]


def _holders(modules: list[nn.Module], without_buffers: set[nn.Module]) -> Iterator[Any]:
    """The holders that modules reach, the nearest first, each once."""
    seen: dict[int, object] = {}
    waiting: deque[tuple[object, str]] = deque((module, type(module).__name__) for module in modules)
    while waiting and len(seen) < MOST:
        one, title = waiting.popleft()
        if id(one) in seen:
            continue
        seen[id(one)] = one  # kept, so that no other object gets its id
        yield from _as_holder(one, title, without_buffers)
        waiting.extend((held, name) for held, name in _held_by(one, title) if _may_hold(held))


def _may_hold(value: object) -> bool:
    kind = type(value)
    if kind in _CONTAINERS:
        return len(value) <= LARGE  # type: ignore[arg-type]
    if kind is tuple:
        return 0 < len(value) <= LARGE  # type: ignore[arg-type]
    if isinstance(value, types.FunctionType | types.MethodType | functools.partial | random.Random):
        return True
    if isinstance(value, torch.Generator | np.random.Generator | np.random.RandomState):
        return True
    if isinstance(value, nn.Module | Tensor | type | types.ModuleType) or kind.__module__.split(".")[0] in _FOREIGN:
        return False
    return hasattr(value, "__dict__")


def _as_holder(one: Any, title: str, without_buffers: set[nn.Module]) -> Iterator[Any]:
    if isinstance(one, nn.Module):
        # Torch's own layers keep state in buffers only, as long as nobody gives them another forward method.
        if not type(one).__module__.startswith("torch.nn.") or "forward" in vars(one):
            yield _Table(vars(one), title, _OF_MODULES)
        # Packed weights are frozen, and a copy of a block's would be large.
        if one._buffers and one not in without_buffers and not isinstance(one, PackedWeight):
            yield _Table(one._buffers, title)
    elif type(one) in _TABLES:
        yield _Table(one, title)
    elif type(one) in _ROWS:
        yield _Row(one, title)
    elif type(one) is set:
        yield _Set(one, title)
    elif isinstance(one, torch.Generator):
        yield _Numbers(one.get_state, one.set_state)
    elif isinstance(one, random.Random):
        yield _Numbers(one.getstate, one.setstate)
    elif isinstance(one, np.random.RandomState):
        yield _Numbers(one.get_state, one.set_state)
    elif isinstance(one, np.random.Generator):
        bits = one.bit_generator
        yield _Numbers(lambda: bits.state, functools.partial(setattr, bits, "state"))
    elif isinstance(one, types.FunctionType):
        for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
            if name in _assigned(one.__code__):
                yield _Variable(cell, name)
    elif not isinstance(one, tuple | types.MethodType | functools.partial):
        yield _Table(vars(one), title)


def _held_by(one: Any, title: str) -> Iterator[tuple[object, str]]:
    if isinstance(one, nn.Module):
        yield from ((value, f"{title}.{name}") for name, value in vars(one).items() if name not in _OF_MODULES)
        for hook in (*one._forward_hooks.values(), *one._forward_pre_hooks.values()):
            yield hook, title
        if not type(one).__module__.startswith("torch."):
            yield type(one).forward, title
    elif type(one) in _TABLES:
        yield from ((value, f"{title}[{key!r}]") for key, value in one.items())
    elif type(one) in (*_ROWS, tuple):
        yield from ((value, f"{title}[{at}]") for at, value in enumerate(one))
    elif isinstance(one, types.FunctionType):
        for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
            yield _content(cell), name
        for name in _named(one.__code__):
            value = one.__globals__.get(name)
            if type(value) in _CONTAINERS or isinstance(value, random.Random | torch.Generator | np.random.Generator):
                yield value, name
    elif isinstance(one, types.MethodType):
        yield one.__func__, title
        yield one.__self__, title
    elif isinstance(one, functools.partial):
        yield from ((part, title) for part in (one.func, one.args, one.keywords))
    elif hasattr(one, "__dict__"):
        yield from ((value, f"{title}.{name}") for name, value in vars(one).items())


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


@functools.lru_cache(maxsize=4096)
def _named(code: types.CodeType) -> frozenset[str]:
    """The globals that code reads, functions inside of it included."""
    own = frozenset(line.argval for line in dis.get_instructions(code) if line.opname == "LOAD_GLOBAL")
    return own.union(*(_named(part) for part in code.co_consts if isinstance(part, types.CodeType)))


@functools.lru_cache(maxsize=4096)
def _assigned(code: types.CodeType) -> frozenset[str]:
    """The variables of enclosing functions that code assigns to."""
    return frozenset(line.argval for line in dis.get_instructions(code) if line.opname == "STORE_DEREF")
