"""Sparse matrices: what they are made of, and fake ones with torch's layout, size and number of places."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from snugfit.private_torch import without_modes
from snugfit.private_torch.fake_tensors import FakeTensor, FakeTensorMode

_BY_ROW = (torch.sparse_csr, torch.sparse_bsr)
_BY_COLUMN = (torch.sparse_csc, torch.sparse_bsc)


class SparseFake(FakeTensor):
    """A fake tensor whose layout is a sparse one."""

    parts: tuple[torch.Tensor, ...]
    """Its places, and its values last."""
    coalesced: bool
    """Of COO: whether each place comes once."""


def sparse_fake(
    mode: FakeTensorMode,
    parts: Sequence[torch.Tensor],
    shape: Sequence[int],
    layout: torch.layout,
    *,
    coalesced: bool = False,
) -> SparseFake:
    """Returns a sparse matrix of a fake mode that is made of tensors, fake ones or real.

    `parts`: indices and values for COO; compressed places, plain ones and values for CSR and CSC.
    `coalesced`: of COO, whether each place comes once.
    """
    with without_modes(), torch._C.DisableTorchFunctionSubclass():
        meta = of_parts([_on_meta(part) for part in parts], shape, layout, coalesced)
        device = parts[-1].fake_device if isinstance(parts[-1], FakeTensor) else parts[-1].device
        made: SparseFake = torch.Tensor._make_subclass(
            SparseFake, meta, False, dispatch_device=True, device_for_backend_keys=device
        )
        made.__dict__.update(vars(FakeTensor(mode, torch.empty(0, device="meta"), device)))
    made.parts, made.coalesced = tuple(parts), coalesced
    return made


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns what a tensor keeps its numbers in: itself, or the places and values of a sparse one."""
    if isinstance(tensor, SparseFake):
        return list(tensor.parts)
    if tensor.layout == torch.strided:
        return [tensor]
    with without_modes():
        if tensor.layout == torch.sparse_coo:
            return [tensor._indices(), tensor._values()]
        if tensor.layout in _BY_ROW:
            return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
        if tensor.layout in _BY_COLUMN:
            return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []  # oneDNN's own


def without_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor on meta that is laid out as another one, dense or sparse."""
    parts = parts_of(tensor)
    if parts and tensor.layout is not torch.strided:
        return of_parts(list(map(_on_meta, parts)), tensor.shape, tensor.layout, is_coalesced(tensor))
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def filled(matrix: torch.Tensor) -> torch.Tensor:
    """Returns a sparse matrix like one on meta, with ones for values, all at the first place."""
    *places, values = [torch.zeros(part.shape, dtype=part.dtype) for part in parts_of(matrix)]
    if matrix.layout is not torch.sparse_coo:
        places[0][1:] = len(values)
    return of_parts([*places, values.fill_(1)], matrix.shape, matrix.layout, False)


def is_coalesced(matrix: torch.Tensor) -> bool:
    """Returns whether a matrix of COO says that each of its places comes once."""
    if matrix.layout is not torch.sparse_coo:
        return False
    with without_modes():
        return matrix.is_coalesced()


def _on_meta(part: torch.Tensor) -> torch.Tensor:
    return torch.empty(part.shape, dtype=part.dtype, device="meta")


def of_parts(parts: list[torch.Tensor], shape: Sequence[int], layout: torch.layout, coalesced: bool) -> torch.Tensor:
    """Returns torch's own matrix of its parts, unchecked."""
    if layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(*parts, tuple(shape), check_invariants=False, is_coalesced=coalesced)  # type: ignore[arg-type, call-arg]
    return torch.sparse_compressed_tensor(*parts, tuple(shape), layout=layout, check_invariants=False)  # type: ignore[arg-type, call-arg]
