"""Where in a request an object is, as the person who gave it would write it: `model.attn.config`, `loss: variable run`."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MOST = 200_000
"""Objects that are looked at."""
_NOTHING_INSIDE = (str, bytes, int, float, complex, types.NoneType, types.ModuleType, type)


def paths_of(request: object) -> Iterator[tuple[str, Any]]:
    """Yields the path (empty where there is no name) and object of all that a request holds, the nearest first."""
    waiting: deque[tuple[str, Any]] = deque([("", request)])
    seen: dict[int, Any] = {}
    while waiting and len(seen) < MOST:
        path, value = waiting.popleft()
        if id(value) in seen or isinstance(value, _NOTHING_INSIDE):
            continue
        seen[id(value)] = value
        yield path, value
        waiting.extend((_joined(path, step, value), inner) for step, inner in _inside(value))


def innermost(value: Any, fails: Callable[[Any], bool]) -> tuple[str, Any]:
    """Returns the innermost object that `fails` for something, and its path."""
    path, around = "", {id(value)}
    while True:
        inside = [(step, one) for step, one in _inside(value) if not isinstance(one, _NOTHING_INSIDE)]
        found = next(((step, one) for step, one in inside if id(one) not in around and fails(one)), None)
        if found is None:
            return path, value
        path, value = _joined(path, found[0], value), found[1]
        around.add(id(value))


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", inner) for key, inner in list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from ((f"[{number}]", inner) for number, inner in enumerate(list(value)))
    elif isinstance(value, functools.partial):
        yield from (("", inner) for inner in (value.func, *value.args))
        yield from ((f"[{name!r}]", inner) for name, inner in value.keywords.items())
    elif isinstance(value, types.MethodType):
        yield "", value.__self__
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield f": variable {name}", cell.cell_contents
            except ValueError:  # not filled yet
                continue
        yield from ((f": default {number}", inner) for number, inner in enumerate(value.__defaults__ or ()))
        known = value.__globals__
        named = [name for name in value.__code__.co_names if name in known]
        yield from ((f": global {name}", known[name]) for name in named)
    else:
        held = getattr(value, "__dict__", None)
        for name, inner in list(held.items()) if isinstance(held, dict) else []:
            if name in ("_modules", "_parameters", "_buffers") and isinstance(inner, dict):
                yield from ((f".{own}", one) for own, one in inner.items())
            else:
                yield f".{name}", inner


def _joined(path: str, step: str, owner: Any) -> str:
    """A path with one more step; arguments of a request are named, positions in it are not."""
    if path or step.startswith((".", ":")):
        named = (
            path
            or getattr(owner, "__name__", None)
            or ("model" if hasattr(owner, "_modules") else type(owner).__name__)
        )
        return f"{named}{step}"
    return step[2:-2] if step.startswith("['") else ""
