"""Fake tensors that a script copies (deeply, as clones of layers and averages of weights are; or not) or pickles.

One that was pickled and is read back is new, in the same place, without values.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from snugfit.attributes import Change
from snugfit.private_torch import current_mode
from snugfit.private_torch.fake_tensors import FAKES
from snugfit.private_torch.sparse_layouts import SparseFake
from snugfit.recorder.script_recorder import ScriptRecorder


def copied_tensors() -> list[Change]:
    """Returns the replacements that let fake tensors be copied and pickled."""
    deeply, original = torch.Tensor.__deepcopy__, torch.Tensor.__reduce_ex__

    def copied(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        if type(tensor) not in FAKES and not isinstance(tensor, SparseFake):
            return deeply(tensor, memo)  # type: ignore[no-untyped-call]
        if id(tensor) not in memo:
            new, kind = tensor.detach().clone(), _kind(tensor)
            memo[id(tensor)] = of_kind(new, *kind)
            if kind[0] and isinstance(recorder := current_mode(), ScriptRecorder):
                recorder.ledger.claim((new,), "weights")
        return memo[id(tensor)]

    def reduced(tensor: torch.Tensor, protocol: Any) -> Any:
        if type(tensor) not in FAKES:
            return original(tensor, protocol)  # type: ignore[no-untyped-call]
        if sys._getframe(1).f_globals.get("__name__") == "copy":  # which asks for the same, and shares the memory
            return of_kind, (tensor.detach(), *_kind(tensor))
        layout = tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device)
        return _anew, (*layout, *_kind(tensor))

    return [(torch.Tensor, "__deepcopy__", copied), (torch.Tensor, "__reduce_ex__", reduced)]


def of_kind(data: torch.Tensor, is_weight: bool, wanted: bool) -> torch.Tensor:
    """Returns a tensor as another one is: a weight or none; `wanted`: whether its gradient is."""
    return torch.nn.Parameter(data, wanted) if is_weight else data.requires_grad_(wanted)


def _kind(tensor: torch.Tensor) -> tuple[bool, bool]:
    return isinstance(tensor, torch.nn.Parameter), tensor.requires_grad


def _anew(
    shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: str, is_weight: bool, wanted: bool
) -> torch.Tensor:
    return of_kind(torch.empty_strided(shape, stride, dtype=dtype, device=device), is_weight, wanted)
