"""What code can reach and change while it runs: the objects that models and functions hold, however deep.

Followed are containers, attributes (slots too), closures, default arguments, bound methods, `functools.partial`, hooks; and
of code that is nobody's installed package also the globals that it names, those of imported modules of the person's own
(`losses.bank`), and the classes that it is written in. Not looked into are objects of Python's own library and of torch that
are no modules (queues, loaders, loggers, threads: what they hold belongs to something that goes on outside).
"""

from __future__ import annotations

import dis
import functools
import random
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from weakref import ProxyTypes

import numpy as np
import torch
from torch import nn

MOST = 100_000
"""Objects that are looked into, the nearest first: a data set may be held as well."""
_NOTHING_INSIDE = (
    str, bytes, int, float, complex, types.NoneType, types.ModuleType, torch.dtype, torch.device, torch.Size,
)  # fmt: skip
_CODE = (
    types.FunctionType, types.MemberDescriptorType, types.GetSetDescriptorType, classmethod, staticmethod, property,
)  # fmt: skip
_VALUES = (torch.Tensor, torch.Generator, np.ndarray)
_OF_NUMBERS = frozenset({"random", "numpy"})
"""Names of modules that hold global generators, as they are also imported inside of functions."""
_GENERATORS = tuple(getattr(draw, "__self__", None) for draw in (random.random, np.random.rand))
"""The generators whose methods these modules offer as functions."""
_FRAMEWORK = frozenset(vars(nn.Module()))
"""Attributes of every module; most of them are empty tables."""


def reachable(parts: Iterable[object]) -> list[Any]:
    """Returns all objects that can be reached from some parts; each once, without immutable ones."""
    seen: dict[int, Any] = {}
    waiting = deque(parts)
    while waiting and len(seen) < MOST:
        part = waiting.popleft()
        # A weak proxy holds nothing, and says that it is of the class of what it points to (Lightning's trainer).
        if id(part) not in seen and type(part) not in ProxyTypes and not isinstance(part, _NOTHING_INSIDE):
            seen[id(part)] = part  # kept, so that no other object gets its id
            waiting.extend(_held_by(part))
    return list(seen.values())


def captured_modules(*parts: object) -> list[nn.Module]:
    """Returns the modules among some parts (models, functions, anything) and inside of them, such as a frozen teacher."""
    return [one for one in reachable(parts) if isinstance(one, nn.Module)]


def is_written_here(module: str | None) -> bool:
    """Returns whether a module, by its name, is the person's own code: neither an installed package nor Python's."""
    return _where(module or "") == "own"


def own_attributes(kind: type) -> dict[str, Any]:
    """Returns what a class holds besides functions and descriptors: counters, lists that all of its objects share."""
    held = {name: value for name, value in vars(kind).items() if not name.startswith("__")}
    return {name: value for name, value in held.items() if not isinstance(value, _CODE)}


def globals_of(function: types.FunctionType) -> dict[str, Any]:
    """Returns the globals that a function's code may read or set, by name, as far as they exist."""
    held = function.__globals__
    return {name: held[name] for name in _globals(function.__code__) if name in held}


def modules_of(function: types.FunctionType) -> Iterator[tuple[types.ModuleType, dict[str, Any]]]:
    """Yields the person's own imported modules that a function's code names, with the attributes it may use of them."""
    names = _names(function.__code__)
    for value in globals_of(function).values():
        if isinstance(value, types.ModuleType) and is_written_here(value.__name__):
            yield value, {name: vars(value)[name] for name in names if name in vars(value)}


def draws_by_name(function: types.FunctionType) -> bool:
    """Returns whether a function's code names the global generators of Python or NumPy, or functions of theirs."""
    if _where(function.__module__ or "") == "base":
        return False
    return bool(_names(function.__code__) & _OF_NUMBERS) or any(
        value in (random, np, np.random) or getattr(value, "__self__", None) in _GENERATORS
        for value in globals_of(function).values()
        if isinstance(value, types.ModuleType | types.BuiltinFunctionType | types.MethodType)
    )


def _held_by(part: Any) -> Iterator[Any]:
    kind = type(part)
    if isinstance(part, dict):
        yield from list(dict.values(part))  # a library's subclass may import things when it is asked
    elif isinstance(part, list | tuple | set | frozenset | deque):
        yield from [one for one in part]  # noqa: C416 `list` asks for a length, which tuples of e3nn refuse
    elif isinstance(part, functools.partial):
        yield from (part.func, part.args, part.keywords)
    elif isinstance(part, types.MethodType):
        yield from (part.__self__, part.__func__)
    elif isinstance(part, types.CellType):
        yield from _content(part)
    elif isinstance(part, types.FunctionType):
        if _where(part.__module__ or "") != "base":
            yield from (part.__dict__, part.__defaults__, part.__kwdefaults__)
            yield from part.__closure__ or ()
        if is_written_here(part.__module__):
            yield from globals_of(part).values()
            for _, named in modules_of(part):
                yield from named.values()
    elif isinstance(part, classmethod | staticmethod):
        yield part.__func__
    elif isinstance(part, property):
        yield from (part.fget, part.fset)
    elif isinstance(part, type):
        if is_written_here(part.__module__):
            yield from vars(part).values()
            yield from part.__mro__[1:]
    elif isinstance(part, nn.Module):
        held = vars(part).items()
        yield from [value for name, value in held if name not in _FRAMEWORK or not isinstance(value, dict) or value]
        yield kind
        # Of an installed package too: its defaults. A class that TorchScript made has none to look at.
        yield getattr(kind, "forward", None)
    elif not isinstance(part, _VALUES) and _where(kind.__module__) != "base":
        yield getattr(part, "__dict__", None)
        yield from [getattr(part, name, None) for name in slots_of(kind)]
        yield kind


def slots_of(kind: type) -> tuple[str, ...]:
    """Returns the names of a class's slots."""
    found: list[str] = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        found += [slots] if isinstance(slots, str) else list(slots)
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))


def _content(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # not filled yet
        return []


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> frozenset[str]:
    """The names that code uses, of globals and of attributes, nested functions included."""
    inside = (_names(part) for part in code.co_consts if isinstance(part, types.CodeType))
    return frozenset(code.co_names).union(*inside)


@functools.lru_cache(maxsize=4096)
def _globals(code: types.CodeType) -> frozenset[str]:
    """The globals that code reads and sets, nested functions included."""
    own = frozenset(line.argval for line in dis.get_instructions(code) if line.opname.endswith(("_GLOBAL", "_NAME")))
    return own.union(*(_globals(part) for part in code.co_consts if isinstance(part, types.CodeType)))


@functools.cache
def _where(module: str) -> str:
    """Whose code a module is: `base` (Python, torch, numpy, this package), `installed`, or the person's `own`."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in ("torch", "numpy", __name__.partition(".")[0]):
        return "base"
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return "installed" if {"site-packages", "dist-packages"} & set(Path(file).parts) else "own"
