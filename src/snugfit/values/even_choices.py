"""Which experts of a mixture get which tokens, where code of a person's own asks: as many each.

What `scores.topk(k).indices` holds depends on values, and how many tokens an expert gets follows from it, by whatever
way code finds out: `torch.where(idx == number)`, a mask of `one_hot(idx)`, `bincount`. Each of those that were to choose
from is taken to be chosen equally often, as routers are trained to do: they are chosen one after another. That says how
many chose one, and not which one was chosen, nor whether that was right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

EVENLY = "what topk or argmax chooses (an expert, a class, the next token) was taken to be each equally often"
COUNTS = frozenset(
    {"bincount", "count_nonzero", "cumsum", "histc", "scatter_add", "scatter_add_", "sum", "_unique2", "unique_dim"}
)
"""Operators whose results say how many there are."""
_aten = torch.ops.aten
_COMPARED = (_aten.eq.Tensor, _aten.ne.Tensor)
_CHOOSE = {_aten.topk.default: 2, _aten.max.dim: 1, _aten.argmax.default: 1}
"""Operators that choose the largest -> where they are told along which dimension."""
Steps = list[tuple[Any, tuple[Any, ...]]]
"""Operators and their arguments; all but the first get the result of the one before in front."""


def choices(func: Any, args: Sequence[Any], result: Any) -> tuple[torch.Tensor, Steps] | None:
    """Returns the numbers that an operator has chosen, and the steps that make them; None of other operators."""
    place = _CHOOSE.get(func)
    if place is None or not args[0].dim():
        return None
    several = func is _aten.topk.default
    dim = args[place] if len(args) > place else -1 if several else None
    if dim is None:
        return None
    chosen: torch.Tensor = result if isinstance(result, torch.Tensor) else result[-1]
    count, order = args[0].shape[dim], list(range(chosen.dim()))
    if several:  # those that are chosen together differ
        order.append(order.pop(dim))
    start = count // 2  # special tokens have low numbers, and no text that is wanted goes on with them
    return chosen, [
        (_aten.arange.start, (start, start + chosen.numel())),
        (_aten.remainder.Scalar, (count,)),
        (_aten.view.default, ([chosen.shape[place] for place in order],)),
        (_aten.permute.default, ([order.index(place) for place in range(chosen.dim())],)),
    ]


def judges(func: Any, args: Sequence[Any]) -> bool:
    """Returns whether an operator compares choices one by one with others, which are what is right; experts are numbers."""
    return func in _COMPARED and args[0].shape == args[1].shape
