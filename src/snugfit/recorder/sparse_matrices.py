"""Operators on sparse matrices (COO, CSR, CSC): torch has no fake versions of them, so their parts run in their place.

What a kernel takes beside its result is made and freed around its product, as torch's own code does it.

Source: `SparseTensorMath.cpp` and `SparseCUDATensorMath.cu` of torch (aten/src/ATen/native/sparse), for COO on a card
`s_addmm_out_sparse_dense_cuda`, and `_sparse_mm`, which starts every product with a matrix of zeros.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from snugfit.errors import CannotSimulateError
from snugfit.private_torch.dispatcher import own_operator
from snugfit.private_torch.fake_tensors import FakeTensorMode
from snugfit.private_torch.sparse_layouts import SparseFake, sparse_fake
from snugfit.recording.operator_run import SPARSE_PRODUCT

_aten = torch.ops.aten
MAKERS = {
    _aten._sparse_coo_tensor_with_dims_and_tensors.default,
    _aten._sparse_compressed_tensor_with_dims.default,
    _aten._sparse_csr_tensor_unsafe.default,
    _aten._sparse_csc_tensor_unsafe.default,
    _aten._sparse_compressed_tensor_unsafe.default,
    _aten._to_sparse.default,
    _aten._to_sparse.sparse_dim,
    _aten._to_sparse_csr.default,
    _aten._to_sparse_csc.default,
}
"""Operators that make a sparse matrix of dense parts."""
_COO = torch.sparse_coo
_SCALED = frozenset(("mul", "mul_", "div", "div_", "neg", "abs", "sqrt", "pow", "sign", "relu", "tanh", "sin"))
"""Elementwise operators after which zeros are zeros."""


def run(mode: FakeTensorMode, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs an operator that makes or takes sparse matrices by operators on their parts; `mode`: that of new matrices."""
    name = func._opname
    if name.startswith("_to_sparse"):
        return _as_sparse(mode, name, args[0], kwargs.get("layout"))
    if func in MAKERS:
        return _made(mode, name, args, kwargs)
    does = _DONE.get(name)
    if does is not None:
        return does(*args, **kwargs)
    matrix = args[0]
    alone = isinstance(matrix, SparseFake) and not any(isinstance(one, torch.Tensor) and one.dim() for one in args[1:])
    if name in _SCALED and alone:
        changed = func(matrix.parts[-1], *args[1:], **kwargs)
        return matrix if name.endswith("_") else _like(matrix, *(part.clone() for part in matrix.parts[:-1]), changed)
    raise CannotSimulateError(
        f"{func} on a sparse matrix is not simulated: products with dense matrices and vectors are. Prepare the matrix on "
        "the host before it goes to the card, or estimate with a dense one, which takes more."
    )


def _made(mode: FakeTensorMode, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
    if "coo" in name:
        size, indices, values = args[2:5]
        known = bool(kwargs.get("is_coalesced"))
        return sparse_fake(mode, (indices.detach(), values.detach()), size, _COO, coalesced=known)
    layout = kwargs.get("layout") or (torch.sparse_csc if "csc" in name else torch.sparse_csr)
    parts = tuple(part.detach() for part in args[:3])
    return sparse_fake(mode, parts, args[3], layout)


def _as_sparse(mode: FakeTensorMode, name: str, given: torch.Tensor, layout: torch.layout | None) -> torch.Tensor:
    """A matrix in another layout, on the parts that both have; how many numbers a dense one has is to be assumed."""
    if not isinstance(given, SparseFake):
        found = torch.nonzero(given)
        known = found.t(), given.new_empty((found.shape[0],))
        given = sparse_fake(mode, known, given.shape, _COO, coalesced=True)
    layout = layout or {"_to_sparse_csr": torch.sparse_csr, "_to_sparse_csc": torch.sparse_csc}.get(name, _COO)
    if layout is given.layout:
        return given
    places, values = given.parts[:-1], given.parts[-1]
    if layout is _COO:
        return sparse_fake(mode, (places[1].new_empty((2, len(values))), values), given.shape, _COO, coalesced=True)
    compressed = given.shape[0 if layout is torch.sparse_csr else 1]
    if layout is torch.sparse_csr and given.layout is _COO:
        plain = places[0][1]
    else:
        # They go by way of COO, in whose order they are brought.
        sorting = places[0].new_empty((4, len(values))), places[0].new_empty((2, compressed + 1))
        plain, values = places[-1].new_empty((2, len(values)))[1], values.clone()
        del sorting
    return sparse_fake(mode, (plain.new_empty((compressed + 1,)), plain, values), given.shape, layout)


def _like(matrix: SparseFake, *parts: torch.Tensor, coalesced: bool | None = None) -> torch.Tensor:
    known = matrix.coalesced if coalesced is None else coalesced
    return sparse_fake(matrix.fake_mode, parts, matrix.shape, matrix.layout, coalesced=known)


def _copied(matrix: SparseFake, **_: Any) -> torch.Tensor:
    return _like(matrix, *(part.clone() for part in matrix.parts))


def _alias(matrix: SparseFake) -> torch.Tensor:
    return _like(matrix, *matrix.parts)


def _moved(
    matrix: SparseFake, *, dtype: Any = None, device: Any = None, non_blocking: bool = False, **_: Any
) -> torch.Tensor:
    *places, values = matrix.parts
    where = matrix.device if device is None else device
    moved = [place.to(where, copy=True, non_blocking=non_blocking) for place in places]
    return _like(matrix, *moved, values.to(where, dtype, copy=True, non_blocking=non_blocking))


def _turned(matrix: SparseFake, *_: Any) -> torch.Tensor:
    """A matrix's transpose: places and values anew for COO, and a view of the others."""
    shape = (matrix.shape[1], matrix.shape[0])
    if matrix.layout is _COO:
        indices, values = (part.clone() for part in matrix.parts)
        indices[0].clone()  # kept while rows and columns change places
        return sparse_fake(matrix.fake_mode, (indices, values), shape, _COO)
    other = torch.sparse_csc if matrix.layout is torch.sparse_csr else torch.sparse_csr
    return sparse_fake(matrix.fake_mode, matrix.parts, shape, other)


def _coalesced(matrix: SparseFake, *_: Any) -> torch.Tensor:
    return matrix if matrix.coalesced else _like(matrix, *(part.clone() for part in matrix.parts), coalesced=True)


def _says_coalesced(matrix: SparseFake, coalesced: bool) -> torch.Tensor:
    matrix.coalesced = coalesced
    return matrix


def _of_zeros(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A product that starts from zeros, which are there as long as it runs."""
    dense = right if isinstance(left, SparseFake) else left
    zeros = dense.new_zeros((left.shape[0], right.shape[1]))
    return _added(zeros, left, right)


def _added(_: torch.Tensor, left: torch.Tensor, right: torch.Tensor, **__: Any) -> torch.Tensor:
    if isinstance(right, SparseFake):
        turned: torch.Tensor = _added(_, _turned(right), left.t()).t()
        return turned
    return _product(left, right)  # type: ignore[arg-type]


def _product(matrix: SparseFake, dense: torch.Tensor) -> torch.Tensor:
    """A sparse matrix times a dense one, with what the kernel takes beside."""
    on_host = matrix.device.type == "cpu"
    if matrix.layout is _COO and not on_host:
        (indices, values), rows = _coalesced(matrix).parts, matrix.shape[0]  # type: ignore[attr-defined]
        result = dense.new_empty((rows, dense.shape[1]))
        places = [indices[0].int()]  # cuSPARSE takes compressed rows, and whole numbers of 32 bits
        places = [indices.new_empty((rows + 1,), dtype=torch.int32), indices[1].int()]
        across = _operator()(places, values, dense, rows)  # column by column
        return result.copy_(across)
    if matrix.layout is not _COO and on_host:
        # MKL takes whole numbers of 32 bits, compressed rows, and no numbers that stand for several.
        turned = _as_sparse(matrix.fake_mode, "", matrix, torch.sparse_csr)
        places = [part.int() for part in turned.parts[:-1]]  # type: ignore[attr-defined]
        dense = dense.clone(memory_format=torch.contiguous_format) if 0 in dense.stride() else dense
        return _operator()(places, matrix.parts[-1], dense, matrix.shape[0])  # type: ignore[no-any-return]
    return _operator()(list(matrix.parts[:-1]), matrix.parts[-1], dense, matrix.shape[0])  # type: ignore[no-any-return]


def _times_vector(matrix: SparseFake, vector: torch.Tensor) -> torch.Tensor:
    return _of_zeros(matrix, vector.unsqueeze(1)).squeeze(1)


def _plus(left: torch.Tensor, right: torch.Tensor, **_: Any) -> torch.Tensor:
    if isinstance(left, SparseFake) and isinstance(right, SparseFake) and left.layout is _COO:
        indices, values = (torch.cat([one, other], -1) for one, other in zip(left.parts, right.parts, strict=True))
        return _like(left, indices, values, coalesced=False)
    dense = right if isinstance(left, SparseFake) else left
    return dense.clone()


def _masked(_: torch.Tensor, mask: SparseFake) -> torch.Tensor:
    return _like(mask, *mask.parts[:-1], torch.empty_like(mask.parts[-1]))


def _part(number: int) -> Callable[[SparseFake], torch.Tensor]:
    return lambda matrix: matrix.parts[number].detach()


_DONE: dict[str, Callable[..., Any]] = {
    "mm": _of_zeros,
    "_sparse_mm": _of_zeros,
    "addmm": _added,
    "_sparse_addmm": _added,
    "mv": _times_vector,
    "add": _plus,
    "t": _turned,
    "transpose": _turned,
    "clone": _copied,
    "detach": _alias,
    "alias": _alias,
    "_to_copy": _moved,
    "_coalesce": _coalesced,
    "_coalesced_": _says_coalesced,
    "sparse_mask": _masked,
    "_to_dense": lambda matrix, dtype=None, *_, **__: torch.zeros(
        matrix.shape, dtype=dtype or matrix.dtype, device=matrix.device
    ),
    "is_coalesced": operator.attrgetter("coalesced"),
    "_nnz": lambda matrix: matrix.parts[-1].shape[0],
    "sparse_dim": lambda matrix: matrix.parts[0].shape[0] if matrix.layout is _COO else 2,
    "dense_dim": lambda matrix: matrix.parts[-1].dim() - 1,
    **dict.fromkeys(("_indices", "indices", "crow_indices", "ccol_indices"), _part(0)),
    **dict.fromkeys(("col_indices", "row_indices"), _part(1)),
    **dict.fromkeys(("_values", "values"), _part(-1)),
}
"""Operator -> what does its work on the parts."""


@functools.cache
def _operator() -> Any:
    """The kernel of a product: it reads a row of the dense matrix for each number of the sparse one."""
    return own_operator(
        f"{SPARSE_PRODUCT}(Tensor[] places, Tensor values, Tensor dense, int rows) -> Tensor",
        lambda places, values, dense, rows: dense.new_empty((rows, dense.shape[1])),
    )
