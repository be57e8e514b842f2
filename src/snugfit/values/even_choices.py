"""Which experts of a mixture get which tokens, where code of a person's own asks: as many each.

After `idx = scores.topk(k).indices`, `torch.where(idx == number)` or a mask of `one_hot(idx)` says how many tokens an expert
gets, which depends on values. Each of those that were to choose from is taken to be chosen equally often, as routers are
trained to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

EVENLY = "each expert (of what topk or argmax chooses) was taken to get as many tokens as the others"
_OF = "_snugfit_chosen_of"
"""On a storage of numbers that an operator has chosen: how many there were to choose from."""
_aten = torch.ops.aten
_CHOOSE = {_aten.topk.default: 2, _aten.max.dim: 1, _aten.argmax.default: 1}
"""Operators that choose the largest -> where they are told along which dimension."""
_EQUAL = (_aten.eq.Scalar, _aten.eq.Tensor)
_any = _aten.any.dim
OPERATORS = frozenset({*_CHOOSE, *_EQUAL, _any, _aten._to_copy.default})
"""Operators that `share_of` is to see."""


def chosen_of(tensor: torch.Tensor) -> int | None:
    """Returns from how many each number of a tensor was chosen, None where that is not known; of what is true or not, 2."""
    return 2 if tensor.dtype == torch.bool else getattr(tensor.untyped_storage(), _OF, None)


def share_of(func: Any, args: Sequence[Any], copies: Sequence[torch.Tensor], known: float | None) -> float | None:
    """Returns the share of an operator's result that is true, where it asks which of several was chosen.

    Of an operator that chooses it is noted on the result from how many.

    `copies`: its results. `known`: that share of its first argument.
    """
    source, result = args[0], copies[-1]
    if func in _CHOOSE:
        place = _CHOOSE[func]
        dim = args[place] if len(args) > place else -1 if func is _aten.topk.default else None
        if dim is not None and source.dim():
            setattr(result.untyped_storage(), _OF, source.shape[dim])
        return None
    count: int | None = getattr(source.untyped_storage(), _OF, None)
    if count is None:
        if func is _any and known is not None and 0 < known < 1:
            along: int = source.shape[args[1]]
            return min(1.0, known * along)
        return None
    if func in _EQUAL:
        return 1 / count
    setattr(result.untyped_storage(), _OF, count)
    return None
