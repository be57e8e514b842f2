"""In which layout a card leaves the results of a convolution: torch's fake version decides that by rules for the CPU.

cuDNN computes channels last when the input or the weights are so, and gives its results in that layout; everything else is
(N, C, H, W). What is in another layout is copied first. The layout decides how fast the kernels are, and later copies.

Tensor cores compute channels last, too: where the arguments are (N, C, H, W), cuDNN converts them and the result inside
itself. Measured on an H100 with cuDNN 9 (456 convolutions and 1365 gradients of six networks in three types,
`benchmarks/gpu/kernel_probe.py`): those of windows above one pixel, with a stride, or in groups convert all, to the byte and
147 bytes more; those of single pixels convert where the pixels of a channel do not fill vectors of 16 bytes, in the result
and in the gradient of the weights; one group for each channel converts nothing. What splits the gradient of the weights into
parts adds up to a tenth and is not known; nor are older cards, where the same is taken to hold.

Source: `ATen/native/ConvUtils.h`, cudnn_conv_suggest_memory_format, and `Convolution.cpp`, _convolution and
convolution_backward, of torch 2.14.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from snugfit import private_torch
from snugfit.private_torch import fake_tensors

_VECTOR_BYTES = 16


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


def result_shape(
    source: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """Returns the shape of a convolution's result; `source` is (N, C, ...), `weight` (C of the result, C, ...)."""
    count = source.dim() - 2
    stride, padding, dilation = (
        list(one) * count if len(one) == 1 else one
        for one in (stride, padding, dilation)  # one number for all
    )
    space = zip(source.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    sizes = ((size + 2 * pad - apart * (window - 1) - 1) // step + 1 for size, window, step, pad, apart in space)
    return source.shape[0], weight.shape[0], *sizes


def converted_bytes(
    source: torch.Tensor, weight: torch.Tensor, result: Sequence[int], stride: Sequence[int], groups: int, of: str
) -> int:
    """Returns the bytes that tensor cores' kernels convert to channels last inside themselves.

    `result`: shape of the result.
    `of`: what is computed: `result`, `source` (its gradient) or `weight`.
    """
    if weight.dim() != 4 or layout(source, weight) is not torch.contiguous_format:
        return 0
    item = source.dtype.itemsize
    pixel = weight.shape[2:].numel() == 1
    if groups == source.shape[1] and groups > 1:
        return 0
    vector = _VECTOR_BYTES // item
    if pixel and groups == 1 and set(stride) == {1} and (of == "source" or source.shape[2:].numel() % vector == 0):
        return 0
    # 16-bit kernels read vectors of 8 channels: images of 3 are filled up
    channels = source.shape[1] if item > 2 else -(-source.shape[1] // vector) * vector
    elements = math.prod(result) + source.numel() // source.shape[1] * channels
    if not pixel:
        elements += weight.numel() // weight.shape[1] * (channels if groups == 1 else weight.shape[1])
    return elements * item


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

        fake_tensors.amend_fake(operator, laid_out)
