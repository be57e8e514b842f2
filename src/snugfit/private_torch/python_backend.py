"""The accelerator that torch takes for *the* one of this process, and the kernels that it needs below all modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from snugfit.private_torch.backward_errors import BackendGuard, keep_errors_of_backward
from snugfit.private_torch.dispatcher import claim_kernel, has_kernel


def register_backend(name: str, module: Any) -> None:
    """Registers the pure-Python accelerator; once in a process. `module` becomes `torch.<name>`."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(name, backend_module=module, device_guard=BackendGuard())
    keep_errors_of_backward()
    claim_kernel("aten::empty_strided", _empty_for_values)
    claim_kernel("aten::_copy_from", _copy_values)
    for update in ("aten::_fused_sgd_", "aten::_fused_adagrad_"):  # torch 2.11 to 2.15 has these for Adam only
        if not has_kernel(update, "Meta"):
            claim_kernel(update, _update_in_place, "Meta")


def _empty_for_values(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, **_: Any) -> torch.Tensor:
    """Receives the values of `torch.tensor(..., device=...)`, which torch makes below all modes."""
    made: torch.Tensor = torch._C._acc.create_empty_tensor(tuple(size), dtype)
    return made


def _update_in_place(*_: Any, **__: Any) -> None:
    """One fused kernel that changes weights and state in place and allocates nothing."""


def _copy_values(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Copies nothing: fake tensors have no values. A card with values keeps them beside the tensor."""
    target._given_values = source  # type: ignore[attr-defined]
    return target


def given_values(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the CPU tensor from which torch made one of the accelerator, for `torch.tensor(..., device=...)`."""
    values: torch.Tensor = tensor._given_values  # type: ignore[attr-defined]
    return values
