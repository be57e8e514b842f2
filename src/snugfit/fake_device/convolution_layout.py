"""In which layout a card leaves the results of a convolution: torch's fake version decides that by rules for the CPU.

cuDNN computes channels last when the input or the weights are so, and gives its results in that layout; everything else is
(N, C, H, W). What is in another layout is copied first. The layout decides how fast the kernels are, and later copies.

Source: `ATen/native/ConvUtils.h`, cudnn_conv_suggest_memory_format, and `Convolution.cpp`, _convolution and
convolution_backward, of torch 2.14.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from snugfit import private_torch


def layout(source: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Returns the memory format of a convolution on a card; `source` is (N, C, H, W), or 1 or 3 dimensions of space."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(weight.dim())
    if last is None or torch.float64 in (source.dtype, weight.dtype):
        return torch.contiguous_format
    given = (private_torch.suggested_layout(source), private_torch.suggested_layout(weight))
    return last if last in given else torch.contiguous_format


def copied_bytes(source: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor | None = None) -> int:
    """Returns the bytes of copies that a card makes of arguments (in backward the gradient, too) in another layout."""
    wanted = layout(source, weight)
    given = [one for one in (source, weight, gradient) if one is not None]
    return sum(one.numel() * one.dtype.itemsize for one in given if not one.is_contiguous(memory_format=wanted))


def register(device_type: str) -> None:
    """Makes fake convolutions on a device type give results in the card's layout; call it once in a process."""
    aten = torch.ops.aten
    for operator, first in ((aten.convolution.default, 0), (aten.convolution_backward.default, 1)):

        def laid_out(result: Any, args: Sequence[Any], first: int = first) -> Any:
            source, weight = args[first], args[first + 1]
            if source.device.type != device_type or source.dim() != weight.dim():
                return result
            wanted = layout(source, weight)
            if isinstance(result, torch.Tensor):
                return result.contiguous(memory_format=wanted)
            pair = [one if one is None else one.contiguous(memory_format=wanted) for one in result[:2]]
            return (*pair, *result[2:])

        private_torch.amend_fake(operator, laid_out)
