"""A linear layer whose frozen weight is held in 4 or 8 bits, and is unpacked for each product.

- `nf4`: blocks of 64 weights, each weight one of 16 values that are equally likely under a normal distribution, and a
  float32 scale a block: 0.5625 bytes a weight. With double quantisation the scales are held in 8 bits, in blocks of 256:
  0.516 bytes. The numbers are those of bitsandbytes' `Linear4bit`, made and unpacked by its kernels.
- `int8`: each row is `scale * q` with whole numbers `q` from -127 to 127: one byte a weight, and a scale a row. The scale
  is rounded to bfloat16 before the weights are divided by it, so that it is the same number in every dtype.

Nothing but the packed weight is there between products: autograd keeps neither the unpacked weight nor the input, so
checkpointing and offload find nothing hidden. The gradient of the input is a product with the weight unpacked again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from snugfit.library_imports import needed
from snugfit.techniques.init.late import values_of

BLOCK = 64
"""Weights of nf4 that share a scale."""
SCALE_BLOCK = 256
"""Scales that share a scale under double quantisation."""
CHUNK = 2**24
"""Weights that are quantised at once, so that the temporaries of a large layer stay small; a multiple of `BLOCK`."""


class FrozenLinear(nn.Linear):
    """Takes the place of an `nn.Linear` (or of GPT-2's `Conv1D`) that is never trained; made by `freeze_linear`."""

    method: str
    """`nf4` or `int8`."""
    double_scales: bool
    """Whether the scales of nf4 are quantised, too."""
    dtype: torch.dtype
    """Dtype of the weight as others see it; products are computed in the dtype of their input."""
    W_q: Tensor
    """The packed weight; peft knows by this name that it has to ask for `dequantize()`."""
    scales: Tensor

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weight, unpacked anew at each look; what is written to it is lost."""
        return self.dequantize()

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """Returns the weight.

        Args:
            dtype: Its dtype; None: that of the layer.

        Returns:
            The weight [outputs, inputs], in memory of its own.
        """
        dtype = dtype or self.dtype
        if self.method == "int8":
            return self.W_q.to(dtype).mul_(self.scales.to(dtype).unsqueeze(1))
        operators = torch.ops.bitsandbytes
        scales = self.scales
        if self.double_scales:
            tables = self._buffers
            scales = operators.dequantize_blockwise.default(
                scales, tables["group_scales"], tables["scale_table"], SCALE_BLOCK, torch.float32
            )
            scales = scales + tables["scale_mean"]
        shape = (self.out_features, self.in_features)
        given = dtype if dtype.itemsize <= 4 else torch.float32
        if self.in_features % BLOCK:  # the kernel for CPU starts a block at each row
            weight = operators.dequantize_4bit.default(self.W_q, scales, BLOCK, "nf4", (shape[0] * shape[1],), given)
            weight = weight.view(shape)
        else:
            weight = operators.dequantize_4bit.default(self.W_q, scales, BLOCK, "nf4", shape, given)
        unpacked: Tensor = weight.to(dtype)
        return unpacked

    def forward(self, input: Tensor) -> Tensor:
        """Returns `input` times the weight, plus the bias.

        Args:
            input: Floating tensor [..., inputs].
        """
        place = input.device.type
        if torch.is_autocast_enabled(place):
            input = input.to(torch.get_autocast_dtype(place))
        result: Tensor = _Product.apply(input, self)
        return result + self.bias.to(result.dtype) if _trains(self.bias) else result

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FrozenLinear:
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
        return f"{super().extra_repr()}, {self.method}{' double' if self.double_scales else ''}"


_INTEGERS = {2: torch.int16, 4: torch.int32}


def _trains(bias: Tensor | None) -> bool:
    """Whether somebody has unfrozen a bias, which then needs a gradient: it is added outside of the product."""
    return bias is not None and bias.requires_grad


class _Product(torch.autograd.Function):
    """The product with a weight that is unpacked in forward and again in backward, and never kept."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, layer: FrozenLinear) -> Tensor:
        ctx.layer = layer
        bias = None if layer.bias is None or _trains(layer.bias) else layer.bias.to(input.dtype)
        return F.linear(input, layer.dequantize(input.dtype), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.layer.dequantize(gradient.dtype), None


@torch.no_grad()
def freeze_linear(layer: Any, method: str, *, double: bool, device: torch.device, dtype: torch.dtype | None) -> None:
    """Turns a layer into a `FrozenLinear`, in place; its full weight is freed.

    Args:
        layer: An `nn.Linear` or a `Conv1D` of transformers, on any device; its weight may be awaited.
        method: nf4 or int8.
        double: Whether scales of nf4 are quantised, too.
        device: Where the packed weight is to live; only pieces of the full one go there.
        dtype: Dtype that the layer is to have for others; None: that of its weight.

    Raises:
        InputError: nf4 without bitsandbytes.
    """
    kept = dtype or layer.weight.dtype
    weight = values_of(layer.weight)
    if not isinstance(layer, nn.Linear):
        weight = weight.T
    outputs, inputs = weight.shape
    packed = _nf4(weight, device, double) if method == "nf4" else _int8(weight, device)
    del weight, layer._parameters["weight"]
    layer.__class__ = FrozenLinear  # hooks, names and shared places of the layer stay what they are
    layer.in_features, layer.out_features = inputs, outputs
    layer.method, layer.double_scales, layer.dtype = method, double, kept
    for name, tensor in packed.items():
        layer.register_buffer(name, tensor, persistent=name != "scale_table")
    if layer.bias is not None:
        layer.bias.requires_grad_(False)


def bitsandbytes_library() -> Any:
    """Returns bitsandbytes.

    Raises:
        InputError: It is not installed.
    """
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
    table = torch.tensor(table_of_scales(), device=device)
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
