"""Words that a model compares by identity with constants of its code (`if kind is "conv"`), as Python lets it.

Python holds each constant of code that looks like a name once, and pickle makes another string of it on the other side. What
lies in attributes of modules is put back to the one that code has.
"""

from __future__ import annotations

import operator
import sys
from typing import Any

from torch import nn


def as_in_code(model: nn.Module) -> None:
    """Replaces strings in attributes of a model's modules by the identical ones of its code."""
    seen: set[int] = set()
    for module in model.modules():
        held = vars(module)
        for name, value in held.items():
            if type(value) in (str, list, tuple):
                held[name] = _interned(value, seen)


def _interned(value: Any, seen: set[int]) -> Any:
    if type(value) is str:
        return sys.intern(value)
    if type(value) is list and id(value) not in seen:
        seen.add(id(value))  # it may hold itself
        value[:] = [_interned(one, seen) for one in value]  # the same list: others may hold it
    elif type(value) is tuple:
        changed = tuple(_interned(one, seen) for one in value)
        return value if all(map(operator.is_, value, changed)) else changed
    return value
