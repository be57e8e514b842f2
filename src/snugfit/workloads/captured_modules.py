"""Modules that code holds besides the model: a generator in a closure, a frozen teacher, a network inside of a loss.

Looked into are functions (closures, default arguments, globals that the code names, functions among these), bound methods,
`functools.partial`, tuples, lists, sets and dicts, and the attributes of any other object. Not looked into are what code
reaches by the name of an imported module (`losses.perceptual(...)`), and what it makes while it runs.
"""

from __future__ import annotations

import dis
import functools
import types
from collections import OrderedDict, deque
from collections.abc import Iterator

import torch
from torch import nn

MOST = 100_000
"""Objects that are looked into, the nearest first: a data set may be held as well."""
_HOLD_NOTHING = (str, bytes, int, float, complex, types.NoneType, types.ModuleType, type, torch.Tensor, torch.dtype)
# Most of what a module holds: numbers and empty tables, which need not wait for their turn.
_PLAIN = frozenset({*_HOLD_NOTHING, bool, nn.Parameter})
_TABLES = frozenset({dict, OrderedDict, list, tuple, set, frozenset})


def captured_modules(*parts: object) -> list[nn.Module]:
    """Returns the modules among some parts (models, functions, anything) and inside of them; each once."""
    seen: dict[int, object] = {}
    kinds: dict[type, tuple[str, ...]] = {}
    waiting = deque(parts)
    while waiting and len(seen) < MOST:
        part = waiting.popleft()
        if id(part) not in seen and not isinstance(part, _HOLD_NOTHING):
            seen[id(part)] = part  # kept, so that no other object gets its id
            held = [one for one in _held_by(part, kinds) if type(one) not in _PLAIN]
            waiting.extend([one for one in held if type(one) not in _TABLES or one])
    return [part for part in seen.values() if isinstance(part, nn.Module)]


def _held_by(part: object, kinds: dict[type, tuple[str, ...]]) -> Iterator[object]:
    """What an object holds. What its class holds comes only with the first object of it; `kinds` remembers those."""
    kind = type(part)
    yield getattr(part, "__dict__", None)
    if isinstance(part, dict):
        yield from list(dict.values(part))  # a library's subclass may import things when it is asked
    elif isinstance(part, list | tuple | set | frozenset):
        yield from list(part)
    elif isinstance(part, functools.partial):
        yield from (part.func, part.args, part.keywords)
    elif isinstance(part, types.MethodType):
        yield from (part.__self__, part.__func__)
    elif isinstance(part, types.FunctionType):
        yield from (part.__defaults__, part.__kwdefaults__)
        yield from _cells(part)
        yield from [part.__globals__.get(name) for name in _globals_named(part.__code__)]
    else:
        if kind not in kinds:
            kinds[kind] = tuple(name for base in kind.__mro__ for name in vars(base).get("__slots__", ()))
            yield from [getattr(kind, name, None) for name in ("__call__", "forward")]
        yield from [getattr(part, name, None) for name in kinds[kind]]


def _cells(function: types.FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


@functools.lru_cache(maxsize=4096)
def _globals_named(code: types.CodeType) -> frozenset[str]:
    """The globals that code reads, nested functions included."""
    own = frozenset(line.argval for line in dis.get_instructions(code) if line.opname == "LOAD_GLOBAL")
    return own.union(*(_globals_named(part) for part in code.co_consts if isinstance(part, types.CodeType)))
