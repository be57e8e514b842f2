"""Frozen weights in 4 or 8 bits: how they are packed, and unpacked for each product.

- `nf4`: blocks of 64 weights, each weight one of 16 values that are equally likely under a normal distribution, and a
  float32 scale a block: 0.5625 bytes a weight. With double quantisation the scales are held in 8 bits, in blocks of 256:
  0.516 bytes. The numbers are those of bitsandbytes' `Linear4bit`, made and unpacked by its kernels.
- `int8`: each row is `scale * q` with whole numbers `q` from -127 to 127: one byte a weight, and a scale a row. The scale
  is rounded to bfloat16 before the weights are divided by it, so that it is the same number in every dtype.

`FrozenLinear` holds one matrix so (`frozen_linear.py`), `FrozenStack` those of all experts of a layer (`frozen_stack.py`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.library_imports import needed

BLOCK = 64
"""Weights of nf4 that share a scale."""
SCALE_BLOCK = 256
"""Scales that share a scale under double quantisation."""
CHUNK = 2**24
"""Weights that are quantised at once, so that the temporaries of a large layer stay small; a multiple of `BLOCK`."""
_INTEGERS = {2: torch.int16, 4: torch.int32}


class PackedWeight(nn.Module):
    """A module with a packed weight."""

    method: str
    """`nf4` or `int8`."""
    double_scales: bool
    """Whether the scales of nf4 are quantised, too."""
    dtype: torch.dtype
    """Dtype of the weight as others see it; products are computed in the dtype of their input."""
    packed_shape: tuple[int, ...]
    """[outputs, inputs] of a matrix, with their number in front for a stack of them."""
    W_q: Tensor
    """The packed weight; peft knows by this name that it has to ask for `dequantize()`."""
    scales: Tensor

    def hold(self, weight: Tensor, method: str, *, double: bool, device: torch.device, dtype: torch.dtype) -> None:
        """Packs a weight for `device` and keeps the result; `dtype` is the one it shows to others.

        `weight`: the full weight; only pieces of it go to the device.
        `method`: nf4 or int8.
        `double`: whether scales of nf4 are quantised, too.
        """
        self.packed_shape = tuple(weight.shape)
        self.method, self.double_scales, self.dtype = method, double, dtype
        rows = weight.reshape(-1, weight.shape[-1])
        packed = _nf4(rows, device, double) if method == "nf4" else _int8(rows, device)
        for name, tensor in packed.items():
            self.register_buffer(name, tensor, persistent=name != "scale_table")

    def dequantize(self, dtype: torch.dtype | None = None, index: Any = None) -> Tensor:
        """Returns the weight, in memory of its own; dtype None: that of the layer.

        `index`: which matrices of a stack, as one indexes its first dimension; None: the whole weight.
        """
        dtype = dtype or self.dtype
        codes, scales, shape = self.W_q, self._unpacked_scales(), self.packed_shape
        if index is not None:
            codes, scales = (one.view(shape[0], -1)[index] for one in (codes, scales))
            shape = (*codes.shape[:-1], *shape[1:])
        if self.method == "int8":
            return codes.view(shape).to(dtype).mul_(scales.view(shape[:-1]).to(dtype).unsqueeze(-1))
        given = dtype if dtype.itemsize <= 4 else torch.float32
        # The kernel for CPU starts a block at each row.
        rows = (math.prod(shape),) if shape[-1] % BLOCK else (math.prod(shape[:-1]), shape[-1])
        codes, scales = codes.reshape(-1), scales.reshape(-1)
        weight = torch.ops.bitsandbytes.dequantize_4bit.default(codes, scales, BLOCK, "nf4", rows, given)
        unpacked: Tensor = weight.view(shape).to(dtype)
        return unpacked

    def _unpacked_scales(self) -> Tensor:
        if not self.double_scales:
            return self.scales
        tables: dict[str, Any] = self._buffers
        scales: Tensor = torch.ops.bitsandbytes.dequantize_blockwise.default(
            self.scales, tables["group_scales"], tables["scale_table"], SCALE_BLOCK, torch.float32
        )
        mean: Tensor = tables["scale_mean"]
        return scales + mean

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PackedWeight:
        """Moves to another device; scales keep their dtype whatever the model is cast to."""
        floats = {name: buffer.dtype for name, buffer in self._buffers.items() if buffer is not None}
        floats = {name: dtype for name, dtype in floats.items() if dtype.is_floating_point}
        for name, dtype in floats.items():
            self._buffers[name] = self._buffers[name].view(_INTEGERS[dtype.itemsize])  # type: ignore[union-attr]
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            for name, dtype in floats.items():
                self._buffers[name] = self._buffers[name].view(dtype)  # type: ignore[union-attr]
        return self

    def extra_repr(self) -> str:
        """Returns the sizes and the format."""
        sizes = super().extra_repr() or str(list(self.packed_shape))
        return f"{sizes}, {self.method}{' double' if self.double_scales else ''}"


def bitsandbytes_library() -> Any:
    """Returns bitsandbytes; `InputError` where it is not installed."""
    instead = ", or use quantize='int8', which needs no library."
    return needed("quantize='nf4' needs", "bitsandbytes", install="snugfit[lowbit]", instead=instead)


def _nf4(weight: Tensor, device: torch.device, double: bool) -> dict[str, Tensor]:
    bitsandbytes_library()
    operators = torch.ops.bitsandbytes
    flat = weight.reshape(-1)
    packed = torch.empty(len(flat) // 2, dtype=torch.uint8, device=device)
    scales = torch.empty(-(-len(flat) // BLOCK), dtype=torch.float32, device=device)
    for start in range(0, len(flat), CHUNK):
        piece = flat[start : start + CHUNK].to(device)
        piece = piece.float() if piece.dtype.itemsize > 4 else piece
        bytes_of_piece, scales_of_piece = operators.quantize_4bit.default(piece, BLOCK, "nf4", torch.uint8)
        packed[start // 2 :][: len(piece) // 2] = bytes_of_piece.view(-1)
        scales[start // BLOCK :][: len(scales_of_piece)] = scales_of_piece
    if not double:
        return {"W_q": packed, "scales": scales}
    # In memory of the device's own: in a simulation a constant would be a real tensor among fake ones.
    table = torch.empty(len(table_of_scales()), device=device).copy_(torch.tensor(table_of_scales()))
    mean = scales.mean()
    codes, group_scales = operators.quantize_blockwise.default(scales - mean, table, SCALE_BLOCK)
    return {"W_q": packed, "scales": codes, "group_scales": group_scales, "scale_mean": mean, "scale_table": table}


def _int8(weight: Tensor, device: torch.device) -> dict[str, Tensor]:
    outputs, inputs = weight.shape
    packed = torch.empty(outputs, inputs, dtype=torch.int8, device=device)
    scales = torch.empty(outputs, dtype=torch.bfloat16, device=device)
    rows = max(1, CHUNK // max(1, inputs))
    for start in range(0, outputs, rows):
        piece = weight[start : start + rows].to(device).float()
        scale = (piece.abs().amax(1) / 127).bfloat16()
        divisor = torch.where(scale == 0, 1.0, scale.float()).unsqueeze(1)
        packed[start : start + rows] = (piece / divisor).round_().clamp_(-127, 127)
        scales[start : start + rows] = scale
    return {"W_q": packed, "scales": scales}


@functools.cache
def table_of_scales() -> tuple[float, ...]:
    """Returns the 256 values that a scale can have under double quantisation: bitsandbytes' signed dynamic format.

    A simulation calls this before it records, since the library reads values of tensors here.
    """
    return tuple(bitsandbytes_library().functional.create_dynamic_map(signed=True).tolist())
