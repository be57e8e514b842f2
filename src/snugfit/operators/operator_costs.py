"""What an operator costs, from the shapes of its arguments: floating-point operations, bytes moved, kernels launched.

Floating-point operations follow torch's own formulas (`torch.utils.flop_counter`), except for convolutions, where torch
counts the gradient of grouped weights as if there were no groups; an operator without a formula counts 0 and is judged by
its bytes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from snugfit.recording.multi_tensor import CHUNK_ELEMENTS, TensorLists
from snugfit.recording.operator_run import Convolution
from snugfit.techniques.batches import tensors_in

_PRODUCTS = {"aten.mm.default": 0, "aten.addmm.default": 1, "aten.bmm.default": 0, "aten.baddbmm.default": 1}
"""Matrix products -> position of the left factor."""


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
_ROW_SHAPES = {"aten.native_layer_norm.default": (0, 1), "aten.native_layer_norm_backward.default": (1, 2)}
"""Layer norms -> the positions of what is normalised, and of the shape of a row."""
_CONVOLUTIONS = {"aten.convolution.default": 1, "aten.convolution_backward.default": 2}
"""Convolutions -> how many of the first arguments are images, which are copied where they lie in neither of both layouts."""
_LONG_ROW = 1024
"""A softmax of rows up to this length reads them once. Source: `cuda/PersistentSoftmax.cuh`; measured in the same file."""


class OperatorCost(NamedTuple):
    """The cost of one run of an operator, named as the fields of `OperatorRun`."""

    flops: int
    """Floating-point operations."""
    read_bytes: int
    """Bytes of all tensor arguments."""
    written_bytes: int
    """Bytes of all results that are not views."""
    dtype: str
    """Dtype it computes in."""
    kernels: int
    """Kernels launched; 0 for a view or an uninitialised tensor."""
    product: tuple[int, int, int, int] | tuple[()]
    """Batch, rows, columns and inner size of a matrix product; empty otherwise."""
    convolution: Convolution | tuple[()] = ()
    """The shape of a convolution; empty otherwise."""
    again_bytes: int = 0
    """Bytes that a card's kernels move more than once, or for nothing."""
    blocks: int = 0
    """Blocks of threads, where they may be fewer than the card's SMs; 0: enough."""
    rows: int = 0
    """Rows that a layer norm works off one by one; each row of a backward pass counts three times."""
    uneven: tuple[int, ...] = ()
    """Lengths of those rows of a matrix product's factors that do not begin at multiples of 16 bytes, in elements."""
    lists: TensorLists | tuple[()] = ()
    """The lists of tensors that a multi-tensor operator works on; empty otherwise."""


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of a tensor's elements, those repeated by a stride of 0 counted once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride or size == 0:
            elements *= size
    return elements * tensor.dtype.itemsize


def cost_of(
    operator: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, written: Sequence[torch.Tensor]
) -> OperatorCost:
    """Returns what a run of an operator costs.

    `written`: the tensors it wrote: results that are not views, and arguments it changed.
    """
    name = str(operator)
    if name.endswith(".out"):  # as compiled code calls them: the same kernel, which writes where it is told
        name = name.removesuffix("out") + "default"
        kwargs = {argument: value for argument, value in kwargs.items() if argument != "out"}
    inputs = tensors_in((*args, *kwargs.values()))
    makes_nothing = not written or name.startswith(("aten.empty", "aten.new_empty"))
    formula = _formulas().get(operator.overloadpacket)
    lists = _tensor_lists(name, args)
    convolution = _convolution(name, args, result)
    if convolution:
        flops = convolution_flops(convolution)
    else:
        counted = _with_all_heads(args) if "_scaled_dot_product" in name else args
        flops = int(formula(*counted, **kwargs, out_val=result)) if formula is not None and not makes_nothing else 0
    return OperatorCost(
        flops=flops,
        read_bytes=sum(map(tensor_bytes, inputs)),
        written_bytes=sum(map(tensor_bytes, written)),
        dtype=_compute_dtype(written, inputs),
        kernels=0 if makes_nothing else 1 if lists is None else lists.launches,
        product=_product(name, args),
        convolution=convolution,
        again_bytes=_again_bytes(operator, name, args, inputs, written, convolution),
        blocks=_blocks(name, args),
        rows=_rows(name, args),
        uneven=_uneven(name, args),
        lists=() if lists is None else lists,
    )


def _with_all_heads(args: Sequence[Any]) -> list[Any]:
    """Arguments of attention for torch's formulas: shapes, with the heads of keys and values repeated.

    The formulas of torch 2.11 refuse fewer (grouped queries); later ones count them like this.
    """
    heads = max((arg.shape[1] for arg in args if isinstance(arg, torch.Tensor) and arg.dim() == 4), default=1)
    return [
        torch.Size((arg.shape[0], heads, *arg.shape[2:])) if isinstance(arg, torch.Tensor) and arg.dim() == 4 else arg
        for arg in args
    ]


@functools.cache
def _formulas() -> dict[Any, Any]:
    from torch.utils.flop_counter import flop_registry

    return flop_registry


def _compute_dtype(written: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> str:
    for tensors in (inputs, written):
        for tensor in tensors:
            if tensor.is_floating_point():
                return str(tensor.dtype).removeprefix("torch.")
    for tensor in (*written, *inputs):
        return str(tensor.dtype).removeprefix("torch.")
    return "float32"


def _tensor_lists(name: str, args: Sequence[Any]) -> TensorLists | None:
    if not name.startswith(("aten._foreach_", "aten._fused_")):
        return None
    lists = [a for a in args if isinstance(a, list | tuple) and a and isinstance(a[0], torch.Tensor)]
    if not lists:
        return None
    return TensorLists(
        tensors=len(lists[0]),
        chunks=sum(math.ceil(tensor.numel() / CHUNK_ELEMENTS) for tensor in lists[0]),
        lists=len(lists),
    )


def _product(name: str, args: Sequence[Any]) -> tuple[int, int, int, int] | tuple[()]:
    first = _PRODUCTS.get(name)
    if first is None:
        return ()
    left, right = args[first], args[first + 1]
    batch = left.shape[0] if left.dim() == 3 else 1
    return batch, left.shape[-2], right.shape[-1], left.shape[-1]


def _convolution(name: str, args: Sequence[Any], result: Any) -> Convolution | tuple[()]:
    if name == "aten.convolution.default":
        source, weight, stride, transposed, groups = args[0], args[1], args[3], args[6], args[8]
        images, gradients = result, 0
    elif name == "aten.convolution_backward.default":
        images, source, weight, stride, transposed, groups = args[0], args[1], args[2], args[4], args[7], args[9]
        gradients = sum(bit for bit, wanted in zip((1, 2), args[10], strict=False) if wanted)
    else:
        return ()
    if transposed:  # the same products, with input and output changed over
        source, images = images, source
    return Convolution(
        samples=source.shape[0],
        inputs=source.shape[1],
        outputs=images.shape[1],
        groups=groups,
        taps=math.prod(weight.shape[2:]),
        pixels=math.prod(source.shape[2:]),
        positions=math.prod(images.shape[2:]),
        stride=math.prod(stride),
        gradients=gradients,
        channels_last=_likes_channels_last(source) or _likes_channels_last(weight),
    )


def convolution_flops(shape: Convolution) -> int:
    """Returns the floating-point operations of a convolution, or of its gradients."""
    one = 2 * shape.samples * shape.positions * shape.outputs * (shape.inputs // shape.groups) * shape.taps
    return one * max(1, shape.gradients.bit_count())


def _again_bytes(
    operator: Any,
    name: str,
    args: Sequence[Any],
    inputs: Sequence[torch.Tensor],
    written: Sequence[torch.Tensor],
    convolution: Convolution | tuple[()],
) -> int:
    if name in _READ_TWICE:
        position, read = _READ_TWICE[name], sum(map(tensor_bytes, inputs))
        if not _own_statistics(name, args):
            return tensor_bytes(args[0]) if _sums_over_images(name, args) else 0
        if position is not None and _is_channels_last(args[position]):
            return _channels_last_bytes(args[position], read, sum(map(tensor_bytes, written)))
        return 2 * read if name == "aten.native_layer_norm_backward.default" else read
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


def _blocks(name: str, args: Sequence[Any]) -> int:
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


def _rows(name: str, args: Sequence[Any]) -> int:
    if name not in _ROW_SHAPES:
        return 0
    source, row = (args[position] for position in _ROW_SHAPES[name])
    return source.numel() // max(1, math.prod(row))  # type: ignore[no-any-return]


def _uneven(name: str, args: Sequence[Any]) -> tuple[int, ...]:
    first = _PRODUCTS.get(name)
    if first is None:
        return ()
    found = []
    for factor in args[first : first + 2]:
        strides = [stride for stride in factor.stride() if stride > 1 and stride * factor.dtype.itemsize % 16]
        found += [min(strides)] if strides else []
    return tuple(dict.fromkeys(found))


def _likes_channels_last(tensor: torch.Tensor) -> bool:
    """What torch's `suggest_memory_format` says: channels are adjacent, if only in a part of a larger tensor."""
    if tensor.dim() != 4:
        return False
    if tensor.is_contiguous():
        return False
    channels, *places = tensor.stride()[1:]
    return channels == 1 and all(stride >= tensor.shape[1] for stride in places)


def _is_channels_last(images: torch.Tensor) -> bool:
    return images.dim() == 4 and images.is_contiguous(memory_format=torch.channels_last)
