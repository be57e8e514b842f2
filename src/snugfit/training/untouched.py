"""Running a person's code without leaving a trace: whatever it changes on its objects, and every random number, is put back.

For checks that run the caller's own code on a few samples. Put back by value are

- the generators of torch, Python and NumPy, and those that objects hold of their own;
- lists, dicts, sets, deques, attributes, slots, and what closures, globals and classes of the caller's own code name;
- tensors: buffers are copied beforehand (kernels change running statistics without saying so), all others when an operator
  is about to write to them, so that weights take no memory twice; `tensor.data = ...` and `.grad` are put back as well;
- NumPy's arrays up to `MOST_ARRAY_BYTES`.

Not put back: iterators that were drawn from, files, loggers, state inside of installed packages' modules, tensors of a class
of their own (DTensor, torchao's), and writes of compiled code or of kernels that do not declare them.
"""

from __future__ import annotations

import random
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from snugfit.private_torch.writes import BeforeWrites
from snugfit.techniques.reachable import globals_of, is_written_here, modules_of, own_attributes, reachable, slots_of
from snugfit.training import random_state

MOST_ARRAY_BYTES = 2**24
"""NumPy's arrays up to this size are copied; what writes to them cannot be seen."""
_MISSING = object()
Restore = Callable[[], None]


@contextmanager
def untouched(parts: Iterable[object]) -> Iterator[None]:
    """Context that puts back everything that models and functions (loss, forward, split) hold, and random numbers."""
    drawn = random_state.capture()
    kept = _Kept(parts)
    try:
        with kept.copied_before_written:
            yield
    finally:
        kept.restore()
        random_state.restore(drawn)


class _Kept:
    """A copy of everything that some parts hold."""

    def __init__(self, parts: Iterable[object]) -> None:
        objects = reachable(parts)
        modules = [one for one in objects if isinstance(one, nn.Module)]
        # Which weights and children there are is the business of techniques (sharding swaps them in forward).
        tables = {id(table) for module in modules for table in (module._parameters, module._modules)}
        buffers = [one for module in modules for one in module._buffers.values() if one is not None]
        tensors = [one for one in objects if isinstance(one, Tensor)]
        self.copied_before_written = _CopiedBeforeWritten([*tensors, *[t.grad for t in tensors if t.is_leaf]])
        self._restores: list[Restore] = [_tensor(tensor) for tensor in tensors]
        self._restores += [_buffer(buffer) for buffer in buffers]
        self._restores += [_table(module._buffers) for module in modules]  # also those that have none yet
        for one in objects:
            if id(one) not in tables:
                self._restores.extend(_ways_back(one))

    def restore(self) -> None:
        """Puts everything back."""
        self.copied_before_written.restore()
        with torch.no_grad():
            for restore in self._restores:
                restore()


def _ways_back(one: Any) -> Iterator[Restore]:
    """What restores an object to its present state; none for what cannot be changed."""
    if isinstance(one, dict):
        yield _table(one)
    elif isinstance(one, list):
        yield _sequence(one)
    elif isinstance(one, set):
        yield _set(one)
    elif isinstance(one, deque):
        yield _deque(one)
    elif isinstance(one, torch.Generator):
        state = one.get_state()
        yield lambda: _apply(one.set_state, state)
    elif isinstance(one, np.random.Generator | np.random.RandomState):
        yield from _numpy_generator(one)
    elif isinstance(one, random.Random):
        drawn = one.getstate()
        yield lambda: one.setstate(drawn)
    elif isinstance(one, np.ndarray):
        if one.flags.writeable and one.nbytes <= MOST_ARRAY_BYTES:
            values = one.copy()
            yield lambda: _apply(np.copyto, one, values)
    elif isinstance(one, types.CellType):
        yield _attributes(one, ("cell_contents",))
    elif isinstance(one, types.FunctionType):
        if is_written_here(one.__module__):
            yield _named(one.__globals__, globals_of(one))
            yield from (_named(vars(module), names) for module, names in modules_of(one))
    elif isinstance(one, type):
        if is_written_here(one.__module__):
            yield _attributes(one, tuple(own_attributes(one)))
    elif isinstance(one, nn.Module):
        yield _table(vars(one))
    else:
        slots = slots_of(type(one))
        if slots:
            yield _attributes(one, slots)


def _apply(function: Callable[..., Any], *args: Any) -> None:
    function(*args)


def _same(now: Iterable[Any], before: list[Any]) -> bool:
    found = list(now)
    return len(found) == len(before) and all(map(lambda one, other: one is other, found, before))


def _table(table: dict[Any, Any]) -> Restore:
    plain: Any = OrderedDict if isinstance(table, OrderedDict) else dict  # a subclass may do other things than store
    keys = list(plain.keys(table))
    values = [dict.__getitem__(table, key) for key in keys]

    def restore() -> None:
        if _same(plain.keys(table), keys) and _same((dict.__getitem__(table, key) for key in keys), values):
            return
        for key in set(plain.keys(table)).difference(keys):
            plain.__delitem__(table, key)
        if not _same(plain.keys(table), keys):
            plain.clear(table)
        for key, value in zip(keys, values, strict=True):
            plain.__setitem__(table, key, value)

    return restore


def _named(table: dict[str, Any], before: dict[str, Any]) -> Restore:
    """Some names of a larger table."""

    def restore() -> None:
        for name, value in before.items():
            if table.get(name) is not value:
                table[name] = value

    return restore


def _sequence(items: list[Any]) -> Restore:
    before = list(items)

    def restore() -> None:
        if not _same(items, before):
            list.__setitem__(items, slice(None), before)

    return restore


def _set(items: set[Any]) -> Restore:
    before = set(items)

    def restore() -> None:
        set.clear(items)
        set.update(items, before)

    return restore


def _deque(items: deque[Any]) -> Restore:
    before = list(items)

    def restore() -> None:
        if not _same(items, before):
            deque.clear(items)
            deque.extend(items, before)

    return restore


def _attributes(one: Any, names: Iterable[str]) -> Restore:
    before = {name: _attribute(one, name) for name in names}

    def restore() -> None:
        for name, value in before.items():
            if _attribute(one, name) is not value:
                if value is _MISSING:
                    delattr(one, name)
                else:
                    setattr(one, name, value)

    return restore


def _attribute(one: Any, name: str) -> Any:
    try:
        return getattr(one, name)
    except (AttributeError, ValueError):  # a slot, or a cell, that is not filled
        return _MISSING


def _numpy_generator(one: Any) -> Iterator[Restore]:
    if isinstance(one, np.random.RandomState):
        drawn = one.get_state()
        yield lambda: one.set_state(drawn)
    else:
        state = one.bit_generator.state
        yield lambda: setattr(one.bit_generator, "state", state)


def _buffer(buffer: Tensor) -> Restore:
    values = buffer.detach().clone()
    return lambda: _apply(buffer.copy_, values)


def _tensor(tensor: Tensor) -> Restore:
    """A tensor's storage, shape and gradient; `_CopiedBeforeWritten` has the numbers."""
    gradient = tensor.grad if tensor.is_leaf else None
    place = tensor.data if _is_plain(tensor) else None

    def restore() -> None:
        if place is not None and tensor.untyped_storage()._cdata != place.untyped_storage()._cdata:
            tensor.data = place
        if tensor.is_leaf and tensor.grad is not gradient:
            tensor.grad = gradient

    return restore


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided and not tensor.is_meta


class _CopiedBeforeWritten(BeforeWrites):
    """Copies known tensors right before an operator writes to them."""

    def __init__(self, tensors: Iterable[Tensor | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {
            tensor.untyped_storage()._cdata: tensor for tensor in tensors if tensor is not None and _is_plain(tensor)
        }
        self._copies: list[tuple[Tensor, Tensor]] = []

    def about_to_write(self, tensor: Tensor) -> None:
        """Copies the whole storage of a known tensor, the first time."""
        if not _is_plain(tensor):
            return
        storage = tensor.untyped_storage()
        if self._known.pop(storage._cdata, None) is not None:
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._copies.append((whole, whole.clone()))

    def restore(self) -> None:
        """Writes the copies back."""
        for whole, values in self._copies:
            if whole.untyped_storage().nbytes() != values.nbytes:
                whole.untyped_storage().resize_(values.nbytes)
            whole.copy_(values)
        self._copies = []
