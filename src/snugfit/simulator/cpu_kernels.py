"""Memory that CPU kernels take and give back inside one operator: one row by operator, each with its source.

It depends on the machine: which kernels oneDNN has for its vector instructions, and how many threads torch uses. A
simulated CPU run is a run on this machine, so both are asked of torch. Buffers of some KiB a thread (oneDNN's batches of
pointers, halos, converted biases) are left out.

Known limitation: rows of oneDNN are those of x86 with AVX2 or AVX-512 without bf16 instructions; elsewhere its copies of
operands are counted in the same way, and the float32 sums of bf16 products are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from snugfit.simulator import private_torch, recurrent_kernels
from snugfit.simulator.inner_bytes import AFTER_ALL, InnerBytes

Args = Sequence[Any]
CpuRow = Callable[[Args, Mapping[str, Any]], Sequence[InnerBytes]]

_HEADER_BYTES = 128
"""oneDNN aligns every scratchpad to this, and books as much more. Source: `common/memory_tracking.hpp`."""
_SMALL_PRODUCT = 16 * 16 * 16
_WIDEST_BLOCKED_KERNEL = 14
"""Wider float32 kernels (the patches of vision transformers) get their gradient of weights by a matrix product."""


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize


def _copy_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the contiguous copy that a kernel makes of an argument that is not contiguous."""
    return 0 if tensor.is_contiguous() else _nbytes(tensor)


def _product(left: torch.Tensor, right: torch.Tensor) -> Sequence[InnerBytes]:
    """A bf16 product is added up in a float32 buffer of the result's size; one a thread for batches of products.

    oneDNN does so on machines whose vector unit has no bf16 instructions. Products up to 16 x 16 x 16 run elsewhere.
    An operand that is neither contiguous nor transposed is copied: so is a frozen weight that a linear layer expands over
    the batch of an input that is not contiguous.

    Source: `ATen/native/mkldnn/Matmul.cpp` of torch (use_mkldnn_bf16_matmul, checksize, is_mkldnn_optimized_format); oneDNN
    `cpu/matmul/gemm_bf16_matmul.cpp` and `gemm_based_common.hpp`, get_scratchpad_num_elements.
    """
    if left.dtype != torch.bfloat16 or not private_torch.adds_bf16_in_float32():
        return ()
    rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    batch = left.shape[0] if left.dim() == 3 else 1
    if left.dim() == 2 and rows * inner * columns <= _SMALL_PRODUCT:
        return ()
    one = _up(rows * columns, 64)
    threads = torch.get_num_threads() if left.dim() == 3 else 1
    share = -(-batch * rows * columns // threads)
    elements = _up(min(rows * columns, share // columns * columns if share >= columns else share), 64) * threads
    copies = sum(_nbytes(operand) for operand in (left, right) if not _is_row_or_column_major(operand))
    return [InnerBytes(copies + max(one, elements) * 4 + _HEADER_BYTES, AFTER_ALL)]


def _is_row_or_column_major(matrices: torch.Tensor) -> bool:
    return matrices.is_contiguous() or matrices.transpose(-1, -2).is_contiguous()


def _layer_norm(args: Args, kwargs: Mapping[str, Any]) -> Sequence[InnerBytes]:
    """A contiguous copy of the input where it is not contiguous.

    Source: `ATen/native/layer_norm.cpp`, layer_norm_cpu.
    """
    return [InnerBytes(_copy_bytes(args[0]), AFTER_ALL)]


def _layer_norm_backward(args: Args, kwargs: Mapping[str, Any]) -> Sequence[InnerBytes]:
    """Contiguous copies of gradient and input, and a float32 row a thread for the gradients of weight and bias.

    Source: `ATen/native/layer_norm.cpp`, layer_norm_backward_cpu, and `cpu/layer_norm_kernel.cpp`,
    LayerNormBackwardKernelImplInternal.
    """
    grad, source, shape, mask = args[0], args[1], args[2], args[7]
    width = 1
    for size in shape:
        width *= size
    copies = _copy_bytes(grad) + _copy_bytes(source)
    rows = 2 * torch.get_num_threads() * width * max(4, grad.dtype.itemsize) if mask[1] or mask[2] else 0
    return [InnerBytes(copies + rows, AFTER_ALL)]


def _attention_blocks(queries: int, keys: int) -> tuple[int, int]:
    """Returns rows and columns of the block of scores that one thread holds."""
    return min(queries, 256 if queries >= 768 else 64 if queries >= 192 else 32), min(keys, 512)


def _attention(args: Args, kwargs: Mapping[str, Any]) -> Sequence[InnerBytes]:
    """A block of scores and of the result a thread, in float32; the scores once more in 16 bits.

    Source: `ATen/native/cpu/FlashAttentionKernel.cpp`, cpu_flash_attention (size_per_thread, buf_reduced).
    """
    query, key = args[0], args[1]
    rows, columns = _attention_blocks(query.shape[2], key.shape[2])
    half = rows * columns * query.dtype.itemsize if query.dtype.itemsize == 2 else 0
    one = (rows * columns + 2 * rows + rows * query.shape[3]) * 4 + half
    return [InnerBytes(torch.get_num_threads() * one, AFTER_ALL)]


def _attention_backward(args: Args, kwargs: Mapping[str, Any]) -> Sequence[InnerBytes]:
    """The gradient in (batch, queries, heads, size) order, and a block of scores and of their gradients a thread.

    Source: `ATen/native/cpu/FlashAttentionKernel.cpp`, cpu_flash_attention_backward.
    """
    grad, query, key = args[0], args[1], args[2]
    rows, columns = _attention_blocks(query.shape[2], key.shape[2])
    scores = 2 * rows * columns
    one = scores * 4 + (scores * 2 if query.dtype.itemsize == 2 else 0)
    copy = _copy_bytes(grad.transpose(1, 2))
    return [InnerBytes(copy + torch.get_num_threads() * one + rows * 4, AFTER_ALL)]


class _Convolution:
    """The layouts in which oneDNN computes one convolution, and the bytes of each operand in its layout.

    In the ordinary layout (N, C, H, W) oneDNN copies all operands into blocks of channels and copies results back; few
    input channels are not copied. With channels last only the weights are copied. Channels are padded to whole blocks.

    Source: `ATen/native/mkldnn/Conv.cpp` of torch (its note on memory formats); oneDNN `cpu/cpu_convolution_list.cpp`
    for the order in which kernels are tried.
    """

    def __init__(self, source: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], groups: int) -> None:
        self.groups = groups
        self.strided = any(step != 1 for step in stride)
        self.item = source.dtype.itemsize
        self.lowers = source.dtype == torch.bfloat16 and private_torch.adds_bf16_in_float32()
        self.block = private_torch.vector_bytes() // 4
        self.inputs, self.outputs = source.shape[1], weight.shape[0]
        self.kernel = weight.shape[2:]
        self.taps = 1
        for size in self.kernel:
            self.taps *= size
        self.depthwise = groups == self.inputs == self.outputs
        self.few_inputs = groups == 1 and self.inputs < self.block

    def channels(self, tensor: torch.Tensor) -> int:
        """Returns the bytes of images with their channels padded to whole blocks."""
        return _nbytes(tensor) // tensor.shape[1] * self.padded(tensor.shape[1])

    def padded(self, channels: int) -> int:
        """Returns a number of channels padded to whole blocks; grouped ones other than depthwise stay."""
        if self.groups > 1 and not self.depthwise:
            return channels
        return _up(channels, self.block if channels >= self.block or self.groups > 1 else 8)

    def weights(self, *, pad_inputs: bool = False) -> int:
        """Returns the elements of the weights in the library's layout."""
        if self.depthwise:
            return self.padded(self.outputs) * self.taps
        if self.groups > 1:
            return self.outputs * (self.inputs // self.groups) * self.taps
        few = _up(self.inputs, self.block) if pad_inputs else _up(self.inputs, 2 if self.item == 2 else 1)
        return self.padded(self.outputs) * (few if self.few_inputs else self.padded(self.inputs)) * self.taps


def _convolution(args: Args, kwargs: Mapping[str, Any]) -> Sequence[InnerBytes]:
    """Copies of the operands in the library's layout, and the result in it before it is copied back."""
    source, weight = args[0], args[1]
    last = private_torch.convolution_layout(source, weight, args[3], args[4], args[5], args[6], args[7], args[8])
    if last is None or source.dim() != 4 or args[6]:
        return ()
    convolution = _Convolution(source, weight, args[3], args[8])
    weights = convolution.weights() * convolution.item
    if last:
        return [InnerBytes(_channels_last_copy(source) + _channels_last_copy(weight) + weights, 1)]
    steps, pads, dilations = (list(args[i]) * (2 // len(args[i])) for i in (3, 4, 5))  # one number means all sides
    side = [
        (size + 2 * pad - dilation * (kernel - 1) - 1) // step + 1
        for size, pad, dilation, kernel, step in zip(
            source.shape[2:], pads, dilations, convolution.kernel, steps, strict=True
        )
    ]
    result = source.shape[0] * convolution.padded(convolution.outputs) * side[0] * side[1] * convolution.item
    copied = 0 if convolution.few_inputs else convolution.channels(source)
    own = _copy_bytes(source) + _copy_bytes(weight)
    return [InnerBytes(own + copied + weights + result, 0), InnerBytes(own + result, 1)]


def _channels_last_copy(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_contiguous(memory_format=torch.channels_last) else _nbytes(tensor)


def _convolution_backward(args: Args, kwargs: Mapping[str, Any]) -> Sequence[InnerBytes]:
    """The same copies for the gradient of the input, then for those of weights and bias.

    bf16 gradients of weights are added up in a float32 buffer. The depthwise kernel for gradients of weights takes
    kernels up to three wide; with channels last, wider ones fall to the grouped kernel, which pads each group of one
    channel to a block of inputs and outputs (and, in bf16, copies the input padded in that way).

    Source: oneDNN `cpu/x64/jit_uni_dw_conv_kernel_utils.cpp` (bwd_weights init_conf, "kw > 3"),
    `jit_avx512_common_conv_kernel.cpp` and `jit_avx512_core_bf16_conv_kernel.cpp` (init_scratchpad).
    """
    grad, source, weight = args[0], args[1], args[2]
    last = private_torch.convolution_layout(
        source, weight, args[4], args[5], args[6], args[7], args[8], args[9], args[3]
    )
    if last is None or source.dim() != 4 or args[7]:
        return ()
    wants_input, wants_weight, wants_bias = args[10]
    convolution = _Convolution(source, weight, args[4], args[9])
    item = convolution.item
    own = (
        _channels_last_copy(grad) + _channels_last_copy(source) + _channels_last_copy(weight)
        if last
        else _copy_bytes(grad) + _copy_bytes(source) + _copy_bytes(weight)
    )
    results = int(bool(wants_input))
    spaces: list[InnerBytes] = []
    if wants_input:
        copied = convolution.weights(pad_inputs=True) * item
        if last:
            spaces.append(InnerBytes(own + copied, 1))
        else:
            made = convolution.channels(source) if item == 2 or not convolution.few_inputs else _nbytes(source)
            spaces += [InnerBytes(own + convolution.channels(grad) + copied + made, 0)]
            nested = convolution.groups == 1 and convolution.strided and item == 4
            spaces += [InnerBytes(own + (2 if nested else 1) * made, 1)]
    if wants_weight or wants_bias:
        wide = convolution.depthwise and convolution.kernel[-1] > 3
        elements = convolution.weights()
        operands = 0
        if wide and last:
            elements = convolution.groups * convolution.block**2 * convolution.taps
        elif not last and item == 4 and convolution.groups == 1 and max(convolution.kernel) > _WIDEST_BLOCKED_KERNEL:
            operands = _product_scratch(source, weight, grad)
        elif not wide and not last:
            operands = convolution.channels(grad) + (0 if convolution.few_inputs else convolution.channels(source))
        sums = elements * 4 + _HEADER_BYTES if convolution.lowers else 0
        if wide and last and convolution.lowers:
            sums += _nbytes(source) // source.shape[3] * (source.shape[3] + 2) * convolution.block
        spaces.append(InnerBytes(own + operands + elements * item + sums, results))
        bias = convolution.outputs * item if wants_bias else 0
        spaces.append(InnerBytes(own + elements * item + bias + (_nbytes(weight) if last else 0), AFTER_ALL))
    return spaces


def _product_scratch(source: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> int:
    """Scratch of the gradient of weights as a matrix product: a thread's unfolded image, and its sum, booked four times.

    Source: oneDNN `cpu/gemm_convolution_utils.cpp` (init_conf, backward weights: im2col and wei_reduction); the factor of
    four, and the width from which this kernel is taken, are read off the allocator's events.
    """
    columns = math.prod(weight.shape[1:]) * math.prod(grad.shape[2:]) * weight.dtype.itemsize
    return min(source.shape[0], torch.get_num_threads()) * (columns + 4 * _nbytes(weight))


def _norms(tensors: Sequence[torch.Tensor], dtype: torch.dtype | None) -> Sequence[InnerBytes]:
    """A reduction in another dtype reads a copy in it; the norms of a list are taken one after the other.

    Source: `ATen/native/ReduceOpsUtils.h`, make_reduction (a GPU casts as it reads); `ForeachOpsKernels.cpp`.
    """
    copies = [tensor.numel() * dtype.itemsize for tensor in tensors if dtype is not None and tensor.dtype != dtype]
    return [InnerBytes(max(copies, default=0), AFTER_ALL)]


def _given_dtype(args: Args, kwargs: Mapping[str, Any], position: int) -> torch.dtype | None:
    dtype: torch.dtype | None = args[position] if len(args) > position else kwargs.get("dtype")
    return dtype


def _embedding_backward(args: Args, kwargs: Mapping[str, Any]) -> Sequence[InnerBytes]:
    """Contiguous copies of the gradient and of the tokens.

    Source: `ATen/native/Embedding.cpp`, embedding_dense_backward_cpu.
    """
    return [InnerBytes(_copy_bytes(args[0]) + _copy_bytes(args[1]), AFTER_ALL)]


def _mixed_types(args: Args, kwargs: Mapping[str, Any]) -> Sequence[InnerBytes]:
    """Elementwise kernels compute in one type: operands of another are converted first, and a result of another after.

    Source: `ATen/TensorIterator.cpp`, compute_types (promote_inputs_to_common_dtype, cast_common_dtype_to_outputs), on the
    CPU only; CUDA kernels convert as they load.
    """
    operands = [one for one in args[:2] if isinstance(one, torch.Tensor)]  # torch.add(0.5, tensor) has one
    if len(operands) < 2 or operands[0].dtype == operands[1].dtype:
        return ()
    common = torch.result_type(*operands)
    converted = sum(one.numel() for one in operands if one.dtype != common)
    return [InnerBytes(converted * common.itemsize, AFTER_ALL)]


def _mixed_types_in_place(args: Args, kwargs: Mapping[str, Any]) -> Sequence[InnerBytes]:
    """The same where the first operand is the result too: it is converted both ways."""
    left, right = args[0], args[1]
    if not isinstance(right, torch.Tensor) or left.dtype == right.dtype:
        return ()
    common = torch.result_type(left, right)
    copies = (2 * left.numel() if left.dtype != common else 0) + (right.numel() if right.dtype != common else 0)
    return [InnerBytes(copies * common.itemsize, AFTER_ALL)]


def _quantize_4bit(args: Args, kwargs: Mapping[str, Any]) -> Sequence[InnerBytes]:
    """The weights scaled and their codes in 32 bits, the codes in 8 and half of them shifted; 16-bit weights in float32 too.

    Source: `bitsandbytes/backends/default/ops.py`, quantize_4bit: torch operators, hidden behind one operator.
    """
    weights = args[0]
    float32_copy = 4 if weights.dtype.itemsize == 2 else 0
    return [InnerBytes(weights.numel() * (4 + 4 + 1 + float32_copy) + weights.numel() // 2, AFTER_ALL)]


CPU_ROWS: dict[str, CpuRow] = {
    "aten.linalg_vector_norm.default": lambda args, kwargs: _norms([args[0]], _given_dtype(args, kwargs, 4)),
    "aten._foreach_norm.Scalar": lambda args, kwargs: _norms(args[0], _given_dtype(args, kwargs, 2)),
    "aten.mm.default": lambda args, kwargs: _product(args[0], args[1]),
    "aten.bmm.default": lambda args, kwargs: _product(args[0], args[1]),
    "aten.addmm.default": lambda args, kwargs: _product(args[1], args[2]),
    "aten.baddbmm.default": lambda args, kwargs: _product(args[1], args[2]),
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _attention_backward,
    "aten.embedding_dense_backward.default": _embedding_backward,
    "aten.add.Tensor": _mixed_types,
    "aten.sub.Tensor": _mixed_types,
    "aten.mul.Tensor": _mixed_types,
    "aten.div.Tensor": _mixed_types,
    "aten.add_.Tensor": _mixed_types_in_place,
    "aten.sub_.Tensor": _mixed_types_in_place,
    "aten.mul_.Tensor": _mixed_types_in_place,
    "aten.div_.Tensor": _mixed_types_in_place,
    "aten.native_layer_norm.default": _layer_norm,
    "aten.native_layer_norm_backward.default": _layer_norm_backward,
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "aten.mkldnn_rnn_layer.default": recurrent_kernels.layer_row,
    "aten.mkldnn_rnn_layer_backward.default": recurrent_kernels.backward_row,
    "bitsandbytes.quantize_4bit.default": _quantize_4bit,
}
"""Operator -> row. A row takes positional and keyword arguments and returns the workspaces in order."""
