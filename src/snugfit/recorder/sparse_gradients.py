"""Sparse gradients of embeddings (`sparse=True`), which simulated tensors cannot hold.

They are simulated as dense ones, the size of the weight: the most that they can take, and the estimate says so. (A sparse
gradient holds a row for each index of the batch.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from snugfit.attributes import Change

_PLACES = {"embedding": 6, "embedding_bag": 7}
"""Lookups of `torch.nn.functional` -> the position of `sparse` among their arguments."""
_SAID = "sparse gradients of embeddings were counted as dense ones, which is the most that they can take"


def dense_gradients(answered: Callable[[str], None]) -> list[Change]:
    """Returns the replacements with which embeddings get dense gradients, which SparseAdam then takes.

    `answered`: gets what the estimate says about it.
    """
    lookups = [(F, name, _dense(getattr(F, name), place, answered)) for name, place in _PLACES.items()]
    return [*lookups, (torch.optim, "SparseAdam", _SparseAdam)]


def _dense(lookup: Callable[..., torch.Tensor], place: int, answered: Callable[[str], None]) -> Any:
    @functools.wraps(lookup)
    def looked_up(*args: Any, **kwargs: Any) -> torch.Tensor:
        if len(args) > place and args[place]:
            args = (*args[:place], False, *args[place + 1 :])
        elif kwargs.get("sparse"):
            kwargs["sparse"] = False
        else:
            return lookup(*args, **kwargs)
        found = lookup(*args, **kwargs)
        if found.requires_grad:
            answered(_SAID)
        return found

    return looked_up


class _SparseAdam(torch.optim.Adam):
    """Stands for `torch.optim.SparseAdam`, which refuses dense gradients; its state is Adam's."""

    def __init__(
        self, params: Any, lr: Any = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8, maximize: bool = False
    ) -> None:
        super().__init__(params, lr, betas, eps, maximize=maximize)
