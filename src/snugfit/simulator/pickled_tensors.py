"""Fake tensors that a script pickles: one that is read back is new, in the same place, without values.

`copy.copy` goes the same way and shares the memory, as it does for real tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from snugfit.attributes import Change
from snugfit.private_torch.fake_tensors import FAKES


def pickled_tensors() -> list[Change]:
    """Returns the replacement that lets fake tensors be pickled and copied."""
    original = torch.Tensor.__reduce_ex__

    def reduced(tensor: torch.Tensor, protocol: Any) -> Any:
        if type(tensor) not in FAKES:
            return original(tensor, protocol)  # type: ignore[no-untyped-call]
        kind = isinstance(tensor, torch.nn.Parameter), tensor.requires_grad
        if sys._getframe(1).f_globals.get("__name__") == "copy":
            return _as, (tensor.detach(), *kind)
        layout = tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device)
        return _anew, (*layout, *kind)

    return [(torch.Tensor, "__reduce_ex__", reduced)]


def _as(data: torch.Tensor, is_weight: bool, wanted: bool) -> torch.Tensor:
    return torch.nn.Parameter(data, wanted) if is_weight else data.requires_grad_(wanted)


def _anew(
    shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: str, is_weight: bool, wanted: bool
) -> torch.Tensor:
    return _as(torch.empty_strided(shape, stride, dtype=dtype, device=device), is_weight, wanted)
