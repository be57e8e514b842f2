"""What code keeps from one forward pass to the next, taken down and put back: for passes that are run once more.

Attributes and buffers of modules and of other objects (slots too), lists, dicts, sets, deques, NumPy's arrays, variables of
closures, attributes of classes and globals that code of the person's own names, generators of random numbers of their own,
and the global ones of Python and NumPy. Torch's are the business of whoever runs the pass. Modules and code are found once
(`reachable.py`), what lies in them anew at each pass, since passes make lists and put them there. What is reassigned,
appended or removed is put back by itself; a tensor that is written into needs a copy from before. Parameters are no such
state.

Not put back: iterators (`iterators` tells of them), and what lies in containers of more than `LARGE` entries.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import io
import pickle
import types
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.private_torch.fake_tensors import FakeTensor
from snugfit.techniques.packed_weight import PackedWeight
from snugfit.techniques.reachable import (
    draws_by_name,
    globals_of,
    is_written_here,
    modules_of,
    own_attributes,
    reachable,
)
from snugfit.techniques.state_holders import (
    GLOBAL_NUMBERS,
    PLAIN,
    Attributes,
    Buffers,
    Holder,
    Names,
    Numbers,
    Table,
    Variable,
    holder_of,
)

MOST = 4096
"""Holders of state that are looked into, the nearest first."""
_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}
"""What torch itself keeps in a module: in buffers passes write, the rest they leave alone."""
_CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
_SCALARS = (bool, int, float, str, bytes, types.NoneType, types.FunctionType)
"""Types whose values code may branch on."""
_SMALL = 2**20
"""Bytes of a tensor that is copied before it is known whether passes write into it; kernels may do so without a word."""

Place = tuple[int, Any]
"""Who holds a tensor (`id`), and the key or index there."""


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """What each holder contained at one moment."""

    held: list[tuple[Holder, Any]]
    """The objects themselves."""
    copies: dict[Place, Tensor]
    """Numbers of tensors that passes write into."""


class ForwardState:
    """All state that the forward pass of a module can reach and change."""

    def __init__(self, module: nn.Module, without_buffers: Iterable[nn.Module] = ()) -> None:
        """Finds all modules and code that can hold state.

        `without_buffers`: those of them whose buffers are somebody else's business.
        """
        parts = _parts(module)
        self._draws_by_name = any(isinstance(one, types.FunctionType) and draws_by_name(one) for one in parts)
        self._fixed: list[Holder] = [*GLOBAL_NUMBERS, *_fixed(parts, set(without_buffers))]
        self._buffers = {id(holder.one) for holder in self._fixed if isinstance(holder, Buffers)}
        self._still: dict[int, object] = {}
        self._seen: set[Place] | None = None
        self._overwritten: set[Place] = set()

    def take(self) -> Contents:
        """Returns what every holder has, with copies of tensors that passes write into (before `learn`: all small ones)."""
        contents = Contents(self._held(), {})
        for place, tensor in _tensors(contents.held):
            if self._is_copied(place, tensor):
                contents.copies[place] = tensor.detach().clone()
        return contents

    def about_to_write(self, before: Contents, storage: int) -> None:
        """Copies the tensors of a storage just before the first pass writes into it.

        `storage`: its `_cdata`.
        """
        for place, tensor in _tensors(before.held):
            if place not in before.copies and tensor.untyped_storage()._cdata == storage:
                before.copies[place] = tensor.detach().clone()

    def learn(self, before: Contents, written: Container[int]) -> None:
        """Finds out from a first pass which tensors passes write into, and puts everything back.

        `written`: storages (`_cdata`) that operators have said they write into.
        """
        # Asking the global generators takes longer than all the rest. They are left alone where the first pass has not
        # drawn from them and no code that it reaches names them; what names them may begin later (layer drop, curricula).
        for holder, old in before.held if not self._draws_by_name else ():
            if holder in GLOBAL_NUMBERS and pickle.dumps(holder.take()) == pickle.dumps(old):
                self._still[id(holder.one)] = holder.one
        self._fixed = [holder for holder in self._fixed if id(holder.one) not in self._still]
        self.put(before)
        tensors = dict(_tensors(before.held))
        self._seen = set(tensors)
        fixed = {id(holder.one) for holder, content in before.held if isinstance(content, tuple)}
        for place, copy in before.copies.items():
            tensor = tensors[place]
            # Kernels change running statistics without saying so.
            if tensor.untyped_storage()._cdata in written or not same_numbers(tensor, copy):
                _write_back(tensor, copy)
                if place[0] not in fixed:  # nothing can be put in the place of a tuple's tensor: `written` will tell
                    self._overwritten.add(place)

    def put(self, contents: Contents) -> None:
        """Puts back what every holder had; the numbers inside tensors are not restored here."""
        for holder, old in contents.held:
            holder.put(old)

    def draws(self) -> bool:
        """Returns, after `learn`, whether passes draw random numbers of Python or NumPy, or may begin to."""
        return any(isinstance(holder, Numbers) for holder in self._fixed)

    def iterators(self) -> list[str]:
        """Returns what a person calls the iterators that are held: what is drawn from one cannot be drawn again."""
        return [
            self.name((id(holder.one), key))
            for holder, content in self._held()
            for key, value in _entries(content)
            if isinstance(value, Iterator) and not isinstance(value, nn.Module | io.IOBase)
        ]

    def settings(self, but: Container[str]) -> list[Any]:
        """Returns what code can branch on: plain values, and the types of all others; names in `but` are left out."""
        found: list[Any] = []
        for _, content in self._held():
            for key, value in _entries(content):
                if key not in but:
                    found += (one if type(one) in _SCALARS else type(one) for one in (key, value))
        return found

    @contextmanager
    def as_it_was(self, contents: Contents) -> Iterator[None]:
        """Context in which everything is as it was taken down, for one more pass, and after it as it is now; reusable."""
        now = self._held()
        known = {id(holder.one) for holder, _ in now}
        now += [(holder, holder.take()) for holder, _ in contents.held if id(holder.one) not in known]
        self.put(_with_copies(contents))
        try:
            yield
        finally:
            self.put(Contents(now, {}))

    def written(self, before: Contents) -> dict[Place, int]:
        """Returns the version counts of tensors that are not copied: how often each was written into."""
        return {place: tensor._version for place, tensor in _tensors(before.held) if place not in before.copies}

    def name(self, place: Place) -> str:
        """Returns what a person calls an entry of a holder."""
        owner = next((holder.title for holder in self._fixed if id(holder.one) == place[0]), "what it holds")
        return f"{owner}.{place[1]}" if isinstance(place[1], str) else f"{owner}[{place[1]!r}]"

    def _held(self) -> list[tuple[Holder, Any]]:
        """All holders and what they have: those that are known, and what lies in them."""
        # Breadth first, so that the limit `MOST` cuts off what is farthest from the module.
        held: list[tuple[Holder, Any]] = []
        seen = {id(holder.one) for holder in self._fixed} | self._still.keys()
        waiting = list(self._fixed)
        for holder in waiting:  # it grows
            content = holder.take()
            held.append((holder, content))
            for value in holder.inside(content):
                if type(value) not in PLAIN and id(value) not in seen and len(waiting) < MOST:
                    found = holder_of(value)
                    if found is not None:
                        seen.add(id(value))
                        waiting.append(found)
        return held

    def _is_copied(self, place: Place, tensor: Tensor) -> bool:
        if place in self._overwritten:
            return True
        if place[0] in self._buffers:
            return self._seen is None or place not in self._seen  # some are registered late
        return self._seen is None and tensor.nbytes <= _SMALL


def _parts(module: nn.Module) -> list[Any]:
    """All that a module reaches; a forward method that techniques have put around the module's own is looked through."""
    own_forwards = [inspect.unwrap(vars(one)["forward"]) for one in module.modules() if "forward" in vars(one)]
    return reachable([module, *own_forwards])


def _fixed(parts: Iterable[Any], without_buffers: set[nn.Module]) -> Iterator[Holder]:
    """Finds, once, the modules and code objects that a module reaches and no pass can throw away."""
    names: dict[int, tuple[dict[str, Any], set[str]]] = {}
    for one in parts:
        if isinstance(one, nn.Module):
            # Torch's own layers keep state in buffers only, as long as nobody gives them another forward method.
            own = not type(one).__module__.startswith("torch.nn.") or "forward" in vars(one)
            if own:
                yield Table(vars(one), type(one).__name__, _OF_MODULES)
            # Packed weights are frozen, and a copy of a block's would be large.
            if (own or one._buffers) and one not in without_buffers and not isinstance(one, PackedWeight):
                yield Buffers(one._buffers, type(one).__name__)
        elif isinstance(one, types.CellType):
            yield Variable(one)
        elif isinstance(one, type) and is_written_here(one.__module__):
            yield Attributes(one, tuple(own_attributes(one)), one.__name__)
        elif isinstance(one, types.FunctionType | types.MethodType | functools.partial):
            yield from filter(None, map(holder_of, _arguments(one)))
            if isinstance(one, types.FunctionType) and is_written_here(one.__module__):
                files = [(one.__globals__, globals_of(one)), *((vars(file), named) for file, named in modules_of(one))]
                for table, named in files:
                    held = {name for name, value in named.items() if not isinstance(value, _CODE)}
                    names.setdefault(id(table), (table, set()))[1].update(held)
    yield from (Names(table, tuple(named)) for table, named in names.values() if named)


def _arguments(code: Any) -> tuple[Any, ...]:
    if isinstance(code, types.FunctionType):
        return code.__defaults__, code.__kwdefaults__
    return (code.__self__,) if isinstance(code, types.MethodType) else (code.args, code.keywords)


def same_numbers(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors hold the same values; those without values (meta, fake) count as the same."""
    if isinstance(one, FakeTensor) or one.is_meta or one.layout != torch.strided:
        return True
    return one.shape == other.shape and torch.equal(one, other)


def _write_back(tensor: Tensor, numbers: Tensor) -> None:
    with torch.no_grad():
        if tensor.shape == numbers.shape:
            tensor.copy_(numbers)
        else:  # an observer gives its buffers their size in the first pass
            tensor.data = numbers.clone()


def _entries(content: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(content, dict):
        return content.items()
    return enumerate(content) if isinstance(content, list | tuple) else ()


def _tensors(held: list[tuple[Holder, Any]]) -> Iterator[tuple[Place, Tensor]]:
    for holder, content in held:
        for key, value in _entries(content):
            if isinstance(value, Tensor) and _is_state(value):
                yield (id(holder.one), key), value


def _is_state(tensor: Tensor) -> bool:
    return not isinstance(tensor, nn.Parameter) and tensor.layout == torch.strided and not tensor.is_inference()


def _with_copies(contents: Contents) -> Contents:
    """What was held, with new copies of the tensors that passes write into."""
    places: dict[int, list[Any]] = {}
    for one, key in contents.copies:
        places.setdefault(one, []).append(key)
    held = []
    for holder, content in contents.held:
        if id(holder.one) in places:
            content = content.copy()
            for key in places[id(holder.one)]:
                content[key] = contents.copies[id(holder.one), key].clone()
        held.append((holder, content))
    return Contents(held, {})
