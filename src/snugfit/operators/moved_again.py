"""Bytes that a card's kernels move more than once, or for nothing, and the blocks of threads that normalisations have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from snugfit.recording.operator_run import SPARSE_PRODUCT, Convolution

_READ_TWICE = {
    "aten.native_batch_norm.default": 0,
    "aten.native_batch_norm_backward.default": 1,
    "aten._batch_norm_with_update.default": 0,
    "aten.batch_norm_backward.default": 1,
    "aten.native_layer_norm.default": None,
    "aten.native_layer_norm_backward.default": None,
    "aten.native_group_norm.default": None,
    "aten.native_group_norm_backward.default": None,
}
"""Normalisations whose kernels read their input for the statistics and once more for the result -> for batch norm, where
its input is: with channels last cuDNN keeps it on the chip if it fits. Layer norm's backward pass reads all a third time,
for the gradients of weight and bias. Source: `layer_norm_kernel.cu`, `Normalization.cuh` and `cudnn/BatchNorm.cpp`
(CUDNN_BATCHNORM_SPATIAL_PERSISTENT) of torch; measured in benchmarks/results/clock_fit.json."""
_IN_TRAINING = {
    "aten.native_batch_norm.default": 5,
    "aten.native_batch_norm_backward.default": 7,
    "aten.batch_norm_backward.default": 7,
}
"""Batch norms -> the position of the flag that says whether the statistics are the batch's own. In evaluation mode they are
those that were learned, and the kernel is elementwise: the 20 of ResNet-18, 32 images in float32, move 636 MB if each reads
and writes once, and take 0.97 ms on an RTX 5070 Ti Laptop of 672 GB/s by its data sheet (a public profile: 9.658 ms for
200 calls of cuDNN's `bn_fw_inf_1C11_kernel_NCHW`). Its backward pass sums for the gradients of weight and bias, where they
are wanted, and needs no sum for that of the input (`batch_norm_backward_cuda` in `Normalization.cu` of torch)."""
_ON_CHIP_BYTES = 5e6
"""Images of 64 channels up to this size stay in the registers and the shared memory of some 80 SMs while cuDNN's batch norm
with channels last works them off (the algorithm is apex's `nhwc_batch_norm_kernel.h`: 480 pixels a block of 512 threads)."""
_ACROSS = 12
"""Bytes of the memory bus that an element takes which is read across, whatever its size: a 4090 copies transposed matrices
of 768 x 1024 at 256 GB/s in float16, 3.5 times as slowly as straight ones (github.com/ggml-org/llama.cpp/pull/16841)."""
_POOLED = 25
"""Bytes of the memory bus that an element takes in max pooling's backward pass, where each looks at every window that it may
lie in: A100 takes 2.3 ms with channels first, 1.5 with channels last, for 128 images of 64 channels, 112 x 112 (the profiles
that `recording/convolution_times.py` names)."""
_COPIES = ("aten._to_copy.default", "aten.clone.default", "aten.copy_.default")
"""Elementwise, but not marked so."""
_CONVOLUTIONS = {"aten.convolution.default": 1, "aten.convolution_backward.default": 2}
"""Convolutions -> how many of the first arguments are images, which are copied where they lie in neither of both layouts."""
_LONG_ROW = 1024
"""A softmax of rows up to this length reads them once. Source: `cuda/PersistentSoftmax.cuh`; measured in the same file."""


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of a tensor's elements, those repeated by a stride of 0 counted once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride or size == 0:
            elements *= size
    return elements * tensor.dtype.itemsize


def again_bytes(
    operator: Any,
    name: str,
    args: Sequence[Any],
    inputs: Sequence[torch.Tensor],
    written: Sequence[torch.Tensor],
    convolution: Convolution | tuple[()],
) -> int:
    """Returns the bytes of a run beyond those of its arguments and results, each moved once."""
    if name in _READ_TWICE:
        position, read = _READ_TWICE[name], sum(map(tensor_bytes, inputs))
        if not _own_statistics(name, args):
            return tensor_bytes(args[0]) if _sums_over_images(name, args) else 0
        if position is not None and _is_channels_last(args[position]):
            return _channels_last_bytes(args[position], read, sum(map(tensor_bytes, written)))
        return 2 * read if name == "aten.native_layer_norm_backward.default" else read
    if name == f"snugfit.{SPARSE_PRODUCT}.default":  # a row of the dense matrix for each number of the sparse one
        _, values, dense, _ = args
        moved: int = values.numel() * dense.shape[1] * dense.itemsize
        return max(0, moved - tensor_bytes(dense))
    if name in ("aten._softmax.default", "aten._log_softmax.default"):
        return tensor_bytes(args[0]) if args[0].dim() and args[0].shape[args[1]] > _LONG_ROW else 0
    if name == "aten.max_pool2d_with_indices_backward.default":
        return _POOLED * sum(tensor.numel() for tensor in written)
    if convolution:
        wanted = torch.channels_last if convolution.channels_last else torch.contiguous_format
        images = [tensor for tensor in args[: _CONVOLUTIONS[name]] if tensor.dim() == 4]
        return 2 * sum(tensor_bytes(one) for one in images if not one.is_contiguous(memory_format=wanted))
    if written and (torch.Tag.pointwise in operator.tags or name in _COPIES):
        return _strided_bytes(inputs, max(written, key=torch.Tensor.numel))
    return 0


def _channels_last_bytes(images: torch.Tensor, read: int, written: int) -> int:
    """Bytes that cuDNN's batch norm with channels last moves again, or could have moved in the time.

    A block of threads works off 64 channels; with fewer, threads idle, and memory is kept busy by no fewer than half.
    """
    channels = images.shape[1]
    again = read if images.numel() // channels * 64 * images.dtype.itemsize > _ON_CHIP_BYTES else 0
    return int((read + again + written) * min(2.0, -(-channels // 64) * 64 / channels)) - read - written


def _strided_bytes(inputs: Sequence[torch.Tensor], result: torch.Tensor) -> int:
    """Bytes that an elementwise kernel moves for nothing because an argument is not laid out as the result is."""
    if result.dim() == 0 or result.numel() < 2:
        return 0
    inner = min((d for d in range(result.dim()) if result.shape[d] > 1), key=result.stride) - result.dim()
    wasted, alike = 0, True
    for tensor in inputs:
        if tensor.numel() < 2:
            continue
        if -inner <= tensor.dim() and tensor.shape[inner] > 1 and tensor.stride(inner) > 1 and 1 in tensor.stride():
            wasted += tensor_bytes(tensor) // tensor.dtype.itemsize * max(0, _ACROSS - tensor.dtype.itemsize)
        alike = alike and tensor.stride() == result.stride() and tensor.shape == result.shape
    if not wasted and not alike and result.dtype.itemsize <= 2:
        wasted = sum(map(tensor_bytes, (*inputs, result))) // 3
    return wasted


def blocks_of_threads(name: str, args: Sequence[Any]) -> int:
    """Number of thread blocks of a batch norm with channels first: one for each channel."""
    position = _READ_TWICE.get(name)
    if position is None or _is_channels_last(args[position]) or not _sums_over_images(name, args):
        return 0
    return args[position].shape[1]  # type: ignore[no-any-return]


def _own_statistics(name: str, args: Sequence[Any]) -> bool:
    """Whether a normalisation takes the statistics of its own input."""
    return bool(args[_IN_TRAINING[name]]) if name in _IN_TRAINING else True


def _sums_over_images(name: str, args: Sequence[Any]) -> bool:
    """Whether a batch norm sums over the images: for statistics, or for the gradients of weight and bias."""
    return _own_statistics(name, args) or ("backward" in name and any(args[9][1:]))


def _is_channels_last(images: torch.Tensor) -> bool:
    return images.dim() == 4 and images.is_contiguous(memory_format=torch.channels_last)
