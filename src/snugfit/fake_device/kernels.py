"""Memory that CUDA kernels take and give back inside one operator, which fake tensors cannot show.

One table by operator, each row with its source; for CPU runs the machine is asked (`cpu_operators.py`). A row by
technique or by model would be a bug: it would mean that the step is not recorded as it runs. A kernel whose temporary
memory no source gives counts 0: cuDNN's convolution workspace depends on the algorithm its heuristics pick on the card.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from snugfit.fake_device.convolution_layout import copied_bytes
from snugfit.fake_device.reduce_kernels import scratch_bytes

AFTER_ALL = 1 << 30
"""More results than any operator has."""


class InnerBytes(NamedTuple):
    """What is alive inside an operator at one moment."""

    nbytes: int
    """Bytes of all inner blocks that are alive at this moment."""
    results: int
    """How many of the operator's new results exist by then."""


MIB = 2**20
Args = Sequence[Any]
Row = Callable[[Args, Mapping[str, Any], tuple[int, int]], Sequence[int]]


def workspaces(
    operator: str, args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]
) -> tuple[InnerBytes, ...]:
    """Returns the memory that an operator takes inside itself on CUDA.

    One workspace after the other: each is given back before the next one is taken.
    """
    row = _CUDA.get(operator)
    return tuple(InnerBytes(size, AFTER_ALL) for size in row(args, kwargs, capability) if size) if row else ()


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
    """Above 3072 indices they are sorted: sorted and original positions, and the sort's double buffer, in int64.

    Source: `cuda/Embedding.cu`, embedding_dense_backward_cuda, and `cuda/EmbeddingBackwardKernel.cu`.
    """
    indices = args[1]
    if indices.numel() <= 3072:
        return []
    return [4 * indices.numel() * indices.dtype.itemsize]


def _convolution(args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    """Copies of arguments that are not in the layout it is computed in; the algorithm's own workspace is not known."""
    return [copied_bytes(args[0], args[1])]


def _convolution_backward(args: Args, kwargs: Mapping[str, Any], capability: tuple[int, int]) -> Sequence[int]:
    """As `_convolution`, with the gradient of the result."""
    return [copied_bytes(args[1], args[2], args[0])]


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
    return [scratch_bytes(args[0], [over] if isinstance(over, int) else over, item)]


_CUDA: dict[str, Row] = {
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
}
