"""What operators make of what is known of values: that numbers are finite, and truth values that follow from that."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

_aten = torch.ops.aten
IS_ALL_TRUE = _aten._is_all_true.default
_Facts = Callable[[Sequence[Any]], float | None]


def _compared(found: bool) -> _Facts:
    """A comparison of a finite number with infinity, or of a tensor with itself: ways to write isfinite."""

    def fact(args: Sequence[Any]) -> float | None:
        other = args[1]
        infinite = isinstance(other, float) and not math.isfinite(other)
        if infinite:
            return float(not found)
        return float(found) if other is args[0] and args[0].is_floating_point() else None

    return fact


def _never(bound: float) -> _Facts:
    """A comparison that no finite number passes, such as more than infinity."""
    return lambda args: 0.0 if isinstance(args[1], float) and args[1] == bound else None


FACTS: dict[Any, _Facts] = {
    _aten.isnan.default: lambda args: 0.0,
    _aten.isinf.default: lambda args: 0.0,
    _aten.isposinf.default: lambda args: 0.0,
    _aten.isneginf.default: lambda args: 0.0,
    _aten.eq.Scalar: _compared(True),
    _aten.eq.Tensor: _compared(True),
    _aten.ne.Scalar: _compared(False),
    _aten.ne.Tensor: _compared(False),
    _aten.gt.Scalar: _never(math.inf),
    _aten.ge.Scalar: _never(math.inf),
    _aten.lt.Scalar: _never(-math.inf),
    _aten.le.Scalar: _never(-math.inf),
}
"""Operators whose result, all elements alike, follows from everything being finite."""
_SAME = (
    _aten._to_copy.default, _aten.all.default, _aten.any.default, _aten.all.dim, _aten.any.dim, _aten.view.default,
    _aten.detach.default, _aten.max.default, _aten.min.default,
)  # fmt: skip
_OPPOSITE = (_aten.bitwise_not.default, _aten.logical_not.default)
_BOTH = (_aten.mul.Tensor, _aten.logical_and.default, _aten.bitwise_and.Tensor)
_EITHER = (_aten.maximum.default, _aten.logical_or.default, _aten.bitwise_or.Tensor)
CARRIES: dict[Any, tuple[int, Callable[[Sequence[float]], float]]] = {
    **dict.fromkeys(_SAME, (1, min)),
    **dict.fromkeys(_OPPOSITE, (1, lambda known: 1 - known[0])),
    **dict.fromkeys(_BOTH, (2, min)),
    **dict.fromkeys(_EITHER, (2, max)),
}
"""Operators that carry known truth values on -> how many they take, and what they make of them."""
DECIDES = {
    **dict.fromkeys((_aten.logical_and.default, _aten.bitwise_and.Tensor), 0.0),
    **dict.fromkeys((_aten.logical_or.default, _aten.bitwise_or.Tensor), 1.0),
}
"""Operators of two, and what one of them has to be so that the other does not matter."""
EQUAL = {_aten.eq.Scalar: True, _aten.ne.Scalar: False}
"""Comparisons of a known value with a number -> whether they ask if the two are equal."""
NOTHING_THERE = (_aten.sum.default, _aten.sum.dim_IntList, _aten.count_nonzero.default)
"""Operators that make zero of what is nowhere true."""
KNOWING = frozenset({*CARRIES, *NOTHING_THERE, *FACTS, IS_ALL_TRUE})
"""Operators whose results may carry on what is known of their arguments' values."""
