"""What a module holds beside its parameters, buffers and modules: tensors and numbers in attributes, lists and objects.

A module that lies in a list or a dict is none of the model's own for torch: its weights are among what is held.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_CODE = (types.MethodType, types.BuiltinFunctionType, types.ModuleType)
_DEEPEST = 4
"""Objects within objects beyond which nobody looks."""


class Held(NamedTuple):
    """One value that a module holds."""

    value: torch.Tensor | torch.Generator | complex
    """A tensor, a generator or a number."""
    put: Callable[[Any], None] | None
    """Puts another one in its place; None where nothing can (in a tuple)."""


def held_values(model: nn.Module) -> dict[str, Held]:
    """Returns the values in plain attributes of a model and of the objects in them, by path.

    Path, such as `blocks.0.table['key'][1]` -> the value, each object once.
    """
    found: dict[str, Held] = {}
    seen = {id(one) for one in (*model.parameters(), *model.buffers(), *model.modules())}
    for prefix, module in model.named_modules():
        for name, value in list(vars(module).items()):
            if name not in _OF_EVERY_MODULE:
                path = f"{prefix}.{name}" if prefix else name
                found.update(_inside(path, value, partial(setattr, module, name), seen, _DEEPEST))
    return found


def _inside(path: str, value: Any, put: Any, seen: set[int], deeper: int) -> Iterator[tuple[str, Held]]:
    if isinstance(value, bool | int | float | complex):
        yield path, Held(value, put)
        return
    if id(value) in seen or isinstance(value, type):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor | torch.Generator):
        yield path, Held(value, put)
    elif isinstance(value, np.ndarray):
        if value.dtype.kind in "biufc" and value.flags.writeable:
            yield path, Held(torch.from_numpy(value), None)
    elif isinstance(value, nn.Module):
        own = {name: one for name, one in vars(value).items() if name not in _OF_EVERY_MODULE}
        for name, one in {**value._parameters, **value._buffers, **value._modules, **own}.items():
            yield from _inside(f"{path}.{name}", one, partial(setattr, value, name), seen, deeper)
    elif not deeper:
        return
    elif isinstance(value, types.FunctionType):  # what a function of the model's own reaches
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # nothing is in it yet
                put_in = partial(setattr, cell, "cell_contents")
                yield from _inside(f"{path}.{name}", cell.cell_contents, put_in, seen, deeper - 1)
    elif isinstance(value, partial):
        yield from _inside(path, [value.func, value.args, value.keywords], None, seen, deeper)
    elif isinstance(value, dict):
        for key, one in list(value.items()):
            yield from _inside(f"{path}[{key!r}]", one, partial(value.__setitem__, key), seen, deeper - 1)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _inside(f"{path}[{number}]", one, partial(value.__setitem__, number), seen, deeper - 1)
    elif isinstance(value, tuple):
        for number, one in enumerate(value):
            yield from _inside(f"{path}[{number}]", one, None, seen, deeper - 1)
    elif (
        hasattr(value, "__dict__") and not isinstance(value, _CODE) and not type(value).__module__.startswith("torch.")
    ):
        for name, one in list(vars(value).items()):
            yield from _inside(f"{path}.{name}", one, partial(setattr, value, name), seen, deeper - 1)
