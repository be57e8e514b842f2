"""Matrix products of groups of rows (`grouped_mm`), which mixtures of experts are made of.

torch's fake version refuses what its real kernels take (float32, as of torch 2.14). Its result depends on the number of
groups alone, not on how many rows each gets, so nothing has to be assumed about the routing of tokens. The rows of the
result are padded to 16 bytes.

Source: `aten/src/ATen/native/GroupedMMUtils.h`, create_grouped_gemm_output_tensor.
"""

from __future__ import annotations

from typing import Any

import torch

from snugfit import private_torch

_ALIGNMENT_BYTES = 16


def register() -> None:
    """Puts the fake version in place; only in the worker."""
    operator = getattr(torch.ops.aten, "_grouped_mm", None)
    if operator is not None:
        private_torch.replace_fake(operator.default, grouped_product)


def grouped_product(
    first: torch.Tensor,
    second: torch.Tensor,
    offsets: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    **others: Any,
) -> torch.Tensor:
    """Returns the result, without values.

    Args:
        first: Rows of all groups, or a matrix for each.
        second: Columns of all groups, or a matrix for each.
        offsets: The end of each group.
        bias: Added to the result.
        out_dtype: Dtype of the result; None: as the operands.
        **others: The same arguments by torch's names.
    """
    ends = others.get("offs", offsets)
    dtype = others.get("out_dtype") or out_dtype or first.dtype
    inside, outside = first.shape[-1], second.shape[-2]
    if inside != outside:
        raise RuntimeError(f"grouped_mm: {inside} columns of the first operand meet {outside} rows of the second")
    rows, columns = first.shape[-2], second.shape[-1]
    apart = first.dim() == second.dim()
    groups = first.shape[0] if first.dim() == 3 else ends.shape[0] if ends is not None else second.shape[0]
    step = _ALIGNMENT_BYTES // dtype.itemsize
    padded = -(-columns // step) * step
    shape = (groups, rows, columns) if apart else (rows, columns)
    stride = (rows * padded, padded, 1) if apart else (padded, 1)
    return torch.empty_strided(shape, stride, dtype=dtype, device=first.device)
