"""Tensors that torch reads from files, made for real whatever modes are active."""

from __future__ import annotations

from typing import Any

import torch

from snugfit.attributes import Change
from snugfit.private_torch import without_modes


def read_for_real() -> list[Change]:
    """Returns the replacement by which tensors of files have their values on the host, as arrays of files have."""

    def rebuilt(storage: Any, *layout: Any) -> torch.Tensor:
        with without_modes():
            tensor = torch.empty(0, dtype=storage.dtype)
        return tensor.set_(storage._untyped_storage, *layout)  # seen by whoever counts what the host holds

    return [(torch._utils, "_rebuild_tensor", rebuilt)]


def whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Returns all numbers of a real tensor's storage as one row of its type."""
    with without_modes():
        row = torch.empty(0, dtype=tensor.dtype)
        storage = tensor.untyped_storage()
        return row.set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))
