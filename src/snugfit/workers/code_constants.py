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
    """Makes words in attributes of a model's modules those that its code has.

    Args:
        model: The model, as it arrived.
    """
    for module in model.modules():
        held = vars(module)
        for name, value in held.items():
            if type(value) in _CHANGES:
                held[name] = _interned(value)


def _interned(value: Any) -> Any:
    change = _CHANGES.get(type(value))
    return value if change is None else change(value)


def _of_list(value: list[Any]) -> list[Any]:
    value[:] = map(_interned, value)  # the same list: others may hold it
    return value


def _of_tuple(value: tuple[Any, ...]) -> tuple[Any, ...]:
    changed = tuple(map(_interned, value))
    return value if all(map(operator.is_, value, changed)) else changed


_CHANGES: dict[type, Any] = {str: sys.intern, list: _of_list, tuple: _of_tuple}
