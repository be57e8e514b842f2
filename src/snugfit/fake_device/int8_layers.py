"""bitsandbytes' layers with 8-bit weights (LLM.int8()) on CUDA, without the columns that hold outliers.

Columns of a layer's input that hold outliers are computed with 16 bits. Random numbers have none, and a trained model few:
the search for them is recorded, and finds none. What the library does in Python around its kernels is done here as there,
so that its temporaries are recorded; fake versions of the whole would hide them.

Source: `bitsandbytes/backends/cuda/ops.py`, int8_vectorwise_quant; `backends/default/ops.py`, int8_mixed_scaled_mm and
int8_scaled_mm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from snugfit.attributes import Change
from snugfit.errors import warn


def without_outliers() -> list[Change]:
    """Returns the replacements for the operators of such a layer."""
    library = torch.ops.bitsandbytes
    quantised = library.int8_vectorwise_quant

    def vectorwise_quant(values: Tensor, threshold: float = 0.0) -> tuple[Tensor, Tensor, Tensor | None]:
        if values.device.type == "cpu":
            found: tuple[Tensor, Tensor, Tensor | None] = quantised.default(values, threshold)
            return found
        scales = torch.empty(values.numel() // values.shape[-1], device=values.device, dtype=torch.float32)
        codes, columns = values.to(torch.int8), None
        if threshold > 0:
            warn("inputs of 8-bit layers (LLM.int8()) are taken to hold no outliers, which few of their columns do.")
            (values.abs() >= threshold).any()
            columns = torch.empty(0, device=values.device, dtype=torch.int64)
        return codes, scales, columns

    def scaled_mm(
        codes: Tensor,
        weight: Tensor,
        scales: Tensor,
        of_weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        sums = library.int8_linear_matmul.default(codes, weight)
        found: Tensor = library.int8_mm_dequant.default(
            sums, scales, of_weight, dtype=dtype or torch.float16, bias=bias
        )
        return found

    def mixed_scaled_mm(
        values: Tensor,
        codes: Tensor,
        weight: Tensor,
        scales: Tensor,
        of_weight: Tensor,
        columns: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        none = torch.empty(0, device=values.device, dtype=values.dtype)
        return scaled_mm(codes, weight, scales, of_weight, bias, values.dtype), none

    changes: list[Change] = []
    for name, function in (
        ("int8_vectorwise_quant", vectorwise_quant),
        ("int8_scaled_mm", scaled_mm),
        ("int8_mixed_scaled_mm", mixed_scaled_mm),
    ):
        vars(function)["default"] = function  # it is called by either name
        changes.append((library, name, function))
    return changes
