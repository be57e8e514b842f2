"""Memory that CUDA kernels take and give back inside one operator, which fake tensors cannot show.

One table by operator, each row with its source; for CPU runs the machine is asked (`cpu_operators.py`). A row by
technique or by model would be a bug: it would mean that the step is not recorded as it runs. A kernel whose temporary
memory no source gives counts 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from snugfit.operators.convolution_layout import converted_bytes, copied_bytes, result_shape
from snugfit.operators.recurrent_kernels import inside_bytes
from snugfit.operators.reduce_kernels import scratch_bytes
from snugfit.operators.sync_batch_norm import statistics_inside, sums_inside
from snugfit.recording import cublas
from snugfit.recording.generations import GENERATIONS

AFTER_ALL = 1 << 30
"""More results than any operator has."""


class InnerBytes(NamedTuple):
    """What is alive inside an operator at one moment."""

    nbytes: int
    """Bytes of all inner blocks that are alive at this moment."""
    results: int
    """How many of the operator's new results exist by then."""
    by_generation: tuple[int, ...] = ()
    """The same bytes on each of `GENERATIONS`; empty where they all take as many."""


Args = Sequence[Any]
Row = Callable[[Args, Mapping[str, Any], tuple[int, int]], Sequence[int]]


def workspaces(
    operator: str, args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]
) -> tuple[InnerBytes, ...]:
    """Returns the memory that an operator takes inside itself on CUDA.

    One workspace after the other: each is given back before the next one is taken.
    """
    row = _CUDA.get(operator)
    if row is None:
        return ()
    cards = [row(args, kwargs, card) for card in (capability, *GENERATIONS)]
    found = []
    for own, *others in itertools.zip_longest(*cards, fillvalue=0):
        if own or any(others):
            found.append(InnerBytes(own, AFTER_ALL, tuple(others) if len(set(others)) > 1 else ()))
    return tuple(found)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize


def _flash_backward(args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    """softmax_d and, as the kernel adds up the queries' gradient in float32, dq_accum; expanded gradients under GQA.

    Source: `cuda/flash_attn/flash_api.cpp`, mha_bwd.
    """
    grad, query, key = args[0], args[1], args[2]
    batch, heads, queries, size = query.shape
    rows = _up(queries, 128)
    columns = _up(size, 32 if size <= 128 else 64)
    softmax_d = batch * heads * rows * 4
    accumulated = batch * heads * rows * columns * 4
    expanded = 0
    if key.shape[1] != heads:
        expanded = 2 * batch * key.shape[2] * heads * size * key.dtype.itemsize
    return [softmax_d + accumulated + expanded + _contiguous_copy(grad)]


def _contiguous_copy(grad: torch.Tensor) -> int:
    """Both backward kernels want (batch, queries, heads, size) contiguous, and copy the gradient where it is not."""
    return 0 if grad.transpose(1, 2).is_contiguous() else _nbytes(grad)


def _efficient_backward(args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    """delta, and the staging area of the queries' gradient; in float32 delta comes from a full-size product.

    Source: `cuda/attention_backward.cu`, _efficient_attention_backward, and `mem_eff_attention/kernel_backward.h`
    (kNeedsAccumGradQ, kKernelComputesDelta, workspace_size) with the block sizes of `kernels/cutlassB.h`.
    """
    grad, query, value = args[0], args[1], args[3]
    batch, heads, queries, size = query.shape
    half = query.dtype.itemsize == 2
    widest = max(size, value.shape[-1])
    block_rows, block_columns = (
        (64, 64) if widest <= 64 or capability < (8, 0) else (128, 128) if half and widest <= 128 else (128, 64)
    )
    delta = batch * heads * queries * 4
    blocks = _up(queries, block_rows) // block_rows * (_up(size, block_columns) // block_columns)
    staging = batch * heads * _up(blocks * (16 + block_rows * block_columns * 4), 16)
    if half and widest > block_rows:
        keys = args[2].shape[2]
        splits = max(1, min(_up(keys, block_columns) // block_columns, 200 // (batch * heads)))
        staging += (
            batch * heads * splits * block_columns * (_up(size, block_rows) + _up(value.shape[-1], block_rows)) * 4
        )
    copy = _contiguous_copy(grad)
    product = 0 if half else grad.numel() * 4 + delta
    return [copy + product, copy + delta + staging]


def _efficient_forward(args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    """The output is added up in float32 where one block does not hold a row of it.

    Source: `mem_eff_attention/kernel_forward.h`, kNeedsOutputAccumulatorBuffer (heads above 128 in 16 bits).
    """
    query, value = args[0], args[2]
    if query.dtype.itemsize == 2 and value.shape[-1] > 128:
        return [query.shape[0] * query.shape[1] * query.shape[2] * value.shape[-1] * 4]
    return []


def _embedding_backward(args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    """Above 3072 indices they are sorted, and the gradients of as many parts as there may be added up, in float32.

    Source: `cuda/Embedding.cu`, embedding_dense_backward_cuda, and `cuda/EmbeddingBackwardKernel.cu`; equal to the byte to
    what an H100 took.
    """
    gradient, indices, words = args[0], args[1], args[2]
    count = indices.numel()
    if count <= 3072:
        return []
    segments = min(count, words)
    parts = count // 10 + segments
    positions = (parts + 3 * count + 2 * segments + 2) * 8
    return [
        4 * count * indices.dtype.itemsize,
        parts * gradient.shape[-1] * max(gradient.dtype.itemsize, 4) + positions,
    ]


def _convolution(args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    """Copies of arguments in another layout, and what tensor cores convert (`convolution_layout.py`)."""
    source, weight, stride, padding, dilation, transposed, groups = (args[n] for n in (0, 1, 3, 4, 5, 6, 8))
    converted = 0
    if not transposed and weight.dim() == 4 and _on_tensor_cores(source, capability):
        result = result_shape(source, weight, stride, padding, dilation)
        converted = converted_bytes(source, weight, result, stride, groups, "result")
    return [copied_bytes(source, weight) + converted]


def _convolution_backward(args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    """As `_convolution`, with the gradient of the result; the gradients of the source and of the weights come in turn."""
    gradient, source, weight, stride, transposed, groups, wanted = (args[n] for n in (0, 1, 2, 4, 7, 9, 10))
    converted = [0]
    if not transposed and _on_tensor_cores(source, capability):
        converted = [
            converted_bytes(source, weight, gradient.shape, stride, groups, of)
            for of, needed in zip(("source", "weight"), wanted, strict=False)
            if needed
        ]
    return [copied_bytes(source, weight, gradient) + one for one in converted]


def _on_tensor_cores(source: torch.Tensor, capability: tuple[int, int]) -> bool:
    """Whether a convolution of this type is computed by tensor cores: float32, too, as tf32, unless that was turned off."""
    if source.dtype.itemsize == 2:
        return True
    return source.dtype == torch.float32 and capability >= (8, 0) and torch.backends.cudnn.allow_tf32


def _loss(args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    """The loss of every element, before it is added up.

    Source: `ATen/native/Loss.cpp`, mse_loss_out, smooth_l1_loss_out and huber_loss, the same code on CPU and CUDA.
    """
    prediction, target = args[0], args[1]
    reduction = args[2] if len(args) > 2 else kwargs.get("reduction", 1)
    if not reduction:
        return []
    elements = math.prod(torch.broadcast_shapes(prediction.shape, target.shape))  # type: ignore[no-untyped-call]
    return [elements * torch.result_type(prediction, target).itemsize]


def _sum(args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    """Partial sums of several blocks (`reduce_kernels.py`), which are added up in float32 for 16-bit inputs."""
    over = args[1] if len(args) > 1 else kwargs.get("dim")
    item = max(args[0].dtype.itemsize, 4)
    return [scratch_bytes(args[0], [over] if isinstance(over, int) else over, item, capability)]


def _copy_of(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_contiguous() else _nbytes(tensor)


def _one_copied(args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    """A copy where it is not contiguous. Source: `cuda/SoftMax.cu`, host_softmax; `cuda/layer_norm_kernel.cu`."""
    return [_copy_of(args[0])]


def _softmax_backward(args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    """The product of gradient and result, and copies of what is not contiguous. Source: `cuda/SoftMax.cu`."""
    gradient, result = args[0], args[1]
    product = gradient.numel() * torch.result_type(gradient, result).itemsize
    return [product * (1 if gradient.is_contiguous() else 2) + _copy_of(result)]


def _two_copied(args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    """Copies of gradient and given where they are not contiguous. Source: as `_one_copied`."""
    return [_copy_of(args[0]) + _copy_of(args[1])]


def _roll(args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    """One dimension after the other, each made contiguous. Source: `native/TensorTransformations.h`, roll_common."""
    dimensions = args[2] if len(args) > 2 else kwargs.get("dims", ())
    return [_nbytes(args[0]) if len(dimensions) > 1 else _copy_of(args[0])]


def multiplies_by_lt(operator: str, args: Args, kwargs: Mapping[str, Any]) -> bool:
    """Returns whether cuBLASLt computes a product on CUDA: where a bias of one dimension is added.

    Source: `ATen/native/cuda/Blas.cpp`, isInputCompliesAddmmCudaLt.
    """
    if operator != "aten.addmm.default" or kwargs.get("beta", 1) != 1:
        return False
    bias, left, right = args[:3]
    one_row = bias.dim() == 1 and bias.is_contiguous() and bias.shape[0] == right.shape[1]
    return bool(one_row and left.dtype.is_floating_point and min(*left.shape, *right.shape) > 1)


def _product(args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    return [] if cublas.stays() else [cublas.workspace_bytes(capability)]


def _addmm(args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    if not cublas.stays() and multiplies_by_lt("aten.addmm.default", args, kwargs):
        return [cublas.LT_BYTES]
    return _product(args, kwargs, capability)


_CUDA: dict[str, Row] = {
    "aten._softmax.default": _one_copied,
    "aten._log_softmax.default": _one_copied,
    "aten._softmax_backward_data.default": _softmax_backward,
    "aten._log_softmax_backward_data.default": _two_copied,
    "aten.native_layer_norm.default": _one_copied,
    "aten.native_layer_norm_backward.default": _two_copied,
    "aten.roll.default": _roll,
    "aten.sum.default": lambda args, kwargs, capability: _sum(args[:1], {}, capability),
    "aten.sum.dim_IntList": _sum,
    "aten.mean.default": lambda args, kwargs, capability: _sum(args[:1], {}, capability),
    "aten.mean.dim": _sum,
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "aten.mse_loss.default": _loss,
    "aten.smooth_l1_loss.default": _loss,
    "aten.huber_loss.default": _loss,
    "aten._scaled_dot_product_flash_attention_backward.default": _flash_backward,
    "aten._scaled_dot_product_efficient_attention.default": _efficient_forward,
    "aten._scaled_dot_product_efficient_attention_backward.default": _efficient_backward,
    "aten.embedding_dense_backward.default": _embedding_backward,
    "aten.mm.default": _product,
    "aten.bmm.default": _product,
    "aten.baddbmm.default": _product,
    "aten.addmm.default": _addmm,
    "aten._cudnn_rnn.default": inside_bytes,
    "aten._cudnn_rnn_backward.default": inside_bytes,
    "aten.batch_norm_stats.default": statistics_inside,
    "aten.batch_norm_backward_reduce.default": sums_inside,
}
