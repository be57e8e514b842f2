"""Batch norm over the images of all processes (`nn.SyncBatchNorm`), by operators that CUDA alone has.

Statistics and sums have a number for each channel, in the type in which the kernels add up. Where channels are last, several
blocks share a channel, and each writes its part to memory first.

Source: `ATen/native/cuda/Normalization.cu` and `Normalization.cuh` of torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from snugfit.private_torch import fake_tensors

_MAX_THREADS, _TILE, _MAX_BLOCKS, _EACH, _WORTH = 512, 32, 128, 16, 8
"""Threads of a block, channels that they should work off together, blocks that may share a channel, pixels that a thread
should add up, and blocks from which sharing is worth it (`flexible_launch_configs`)."""
_STATISTICS_EACH, _SUMS_EACH = 4, 2
"""Numbers that a block writes for each channel."""


def register() -> None:
    """Registers the fake versions; only in a worker."""
    aten = torch.ops.aten
    fake_tensors.replace_fake(aten.batch_norm_stats.default, statistics)
    fake_tensors.replace_fake(aten.batch_norm_gather_stats_with_counts.default, joined_statistics)
    fake_tensors.replace_fake(aten.batch_norm_elemt.default, normalised)
    fake_tensors.replace_fake(aten.batch_norm_backward_reduce.default, sums)
    fake_tensors.replace_fake(aten.batch_norm_backward_elemt.default, gradient)


def statistics(images: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Returns mean and inverse deviation of each channel in this process."""
    mean = images.new_empty(images.shape[1], dtype=_added_up_in(images.dtype))
    return mean, torch.empty_like(mean)


def joined_statistics(images: Tensor, means: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Returns those of all processes, each of which has a row."""
    mean = means.new_empty(means.shape[1], dtype=_added_up_in(means.dtype))
    return mean, torch.empty_like(mean)


def normalised(images: Tensor, *_: Any) -> Tensor:
    """Returns the normalised images."""
    return torch.empty_like(images)


def sums(
    grad: Tensor, images: Tensor, mean: Tensor, deviation: Tensor, weight: Tensor | None, *wanted: bool
) -> tuple[Tensor | None, ...]:
    """Returns both sums for the gradient of the images, and the gradients of weight and bias.

    `wanted`: whether images, weight and bias want a gradient; the kernel for channels last makes all, whatever is wanted.
    """
    if _by_channels(grad) and _by_channels(images):
        of_images = of_weight = of_bias = True
    else:
        of_images, of_weight, of_bias = wanted
    of_parameters = mean.new_empty(0) if weight is None else weight
    made = ((mean, of_images), (mean, of_images), (of_parameters, of_weight), (of_parameters, of_bias))
    return tuple(torch.empty_like(like) if needed else None for like, needed in made)


def gradient(grad: Tensor, images: Tensor, *_: Any) -> Tensor:
    """Returns the gradient of the images."""
    layout = torch.preserve_format if _by_channels(grad) else torch.contiguous_format
    return torch.empty_like(images, memory_format=layout)


def statistics_inside(args: Sequence[Any], kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    """Parts of the statistics that blocks write: means, deviations and counts, in room for four."""
    return [_parts(args[0], _STATISTICS_EACH) if _by_channels(args[0]) else 0]


def sums_inside(args: Sequence[Any], kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    """Parts of both sums that blocks write."""
    return [_parts(args[1], _SUMS_EACH) if _by_channels(args[0]) and _by_channels(args[1]) else 0]


def _parts(images: Tensor, each: int) -> int:
    """Bytes of what the blocks write, and of a count of finished ones for each group of channels."""
    channels = images.shape[1]
    pixels = images.numel() // channels
    high = min(_power_of_two(-(-pixels // _EACH)), _MAX_THREADS // min(_power_of_two(channels), _TILE))
    wide = min(_power_of_two(channels), _MAX_THREADS // high)
    blocks = min(-(-pixels // (high * _EACH)), _MAX_BLOCKS)
    if blocks < _WORTH:
        return 0
    return each * channels * blocks * _added_up_in(images.dtype).itemsize + 4 * -(-channels // wide)


def _power_of_two(number: int) -> int:
    """Returns the largest power of two up to a number."""
    return 1 << number.bit_length() - 1


def _by_channels(images: Tensor) -> bool:
    """Returns whether the kernels for channels last take images: all channels of a pixel lie together."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(images.dim())
    return (last is not None and images.is_contiguous(memory_format=last)) or (
        images.is_contiguous() and images.stride(1) == 1
    )


def _added_up_in(dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which CUDA's kernels add up numbers of a type."""
    return torch.float32 if dtype.itemsize < torch.float32.itemsize else dtype
