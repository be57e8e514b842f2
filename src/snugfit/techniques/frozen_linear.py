"""A linear layer whose frozen weight is held in 4 or 8 bits (`packed_weight.py`), and is unpacked for each product.

Nothing but the packed weight is there between products: autograd keeps neither the unpacked weight nor the input, so
checkpointing and offload find nothing hidden. The gradient of the input is a product with the weight unpacked again.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from snugfit.techniques.init.late import values_of
from snugfit.techniques.packed_weight import PackedWeight


class FrozenLinear(PackedWeight, nn.Linear):
    """Takes the place of an `nn.Linear` (or of GPT-2's `Conv1D`) that is never trained; made by `freeze_linear`."""

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weight, unpacked anew at each look; what is written to it is lost."""
        return self.dequantize()

    def forward(self, input: Tensor) -> Tensor:
        """Returns `input` [..., inputs] times the weight, plus the bias."""
        place = input.device.type
        if torch.is_autocast_enabled(place):
            input = input.to(torch.get_autocast_dtype(place))
        result: Tensor = _Product.apply(input, self)
        return result + self.bias.to(result.dtype) if _trains(self.bias) else result


def _trains(bias: Tensor | None) -> bool:
    """Whether somebody has unfrozen a bias. Its gradient needs autograd, so it is then added outside of the product."""
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
    """Turns an `nn.Linear` or `Conv1D` into a `FrozenLinear`, in place, and frees its full weight.

    `layer`: an `nn.Linear` or a `Conv1D` of transformers, on any device; its weight may be awaited.
    `device`: where the packed weight is to live; only pieces of the full one go there.
    `dtype`: dtype that the layer is to have for others; None: that of its weight.
    `method`: nf4 or int8.
    `double`: whether scales of nf4 are quantised, too.
    """
    kept = dtype or layer.weight.dtype
    weight = values_of(layer.weight)
    if not isinstance(layer, nn.Linear):
        weight = weight.T
    del layer._parameters["weight"]
    layer.__class__ = FrozenLinear  # hooks, names and shared places of the layer stay what they are
    layer.out_features, layer.in_features = weight.shape
    layer.hold(weight, method, double=double, device=device, dtype=kept)
    if layer.bias is not None:
        layer.bias.requires_grad_(False)
