"""The LSTM layer on cpu: oneDNN's kernel, with the workspace that it keeps for backward and its own temporaries.

torch runs one oneDNN primitive for each layer and direction. With gradients it keeps a workspace that is several times
larger than the layer's output; torch's fake version of the operator shows it as empty. GRU and plain RNN are made of
ordinary operators on cpu, and need nothing here.

On CUDA, cuDNN runs all of them and keeps a reserve of a size that it alone can tell (`cudnnGetRNNTempSpaceSizes`). There
they are recorded as the ordinary operators that torch takes without cuDNN, and the prediction says so.

Source: `ATen/native/mkldnn/RNN.cpp` of torch (mkldnn_rnn_layer and its backward); oneDNN `cpu/rnn/rnn_utils.hpp` and
`rnn_utils.cpp` (init_conf, set_workspace_sizes, set_offsets, get_good_ld, set_good_strides), for its plain kernels.
Compared with the allocator's events of torch 2.15 (oneDNN 3.13) for widths from 16 to 700 in float32 and bf16.

Known limitation: the layouts are those of x86 with AVX-512. Machines with bf16 or AMX instructions may train 16-bit
layers by other kernels of oneDNN, whose workspace can differ.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from snugfit.errors import SnugfitWarning
from snugfit.simulator import private_torch
from snugfit.simulator.inner_bytes import AFTER_ALL, InnerBytes

CUDNN_WARNING = (
    "on CUDA, cuDNN runs recurrent layers (LSTM, GRU, RNN) and keeps memory for backward whose size only cuDNN knows; here "
    "they are predicted as ordinary operators, one step of the sequence after the other, so memory and time of these layers "
    "are an approximation. Measure a step on the card before relying on it."
)
_RUN_BY_CUDNN = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_library: list[torch.library.Library] = []
_PAGE = 4096
_BOOKED = _PAGE + 568
"""What a scratchpad takes beside its spaces: its alignment, its header, and the lists of pointers to parts of weights."""
_GATES = 4
_MERGED_BELOW = 128
"""From this batch size on, forward multiplies the input step by step. Source: init_conf, merge_gemm_layer."""
_PACKED_ROWS, _PACKED_COLUMNS, _PACKED_BYTES = 48, 128, 2 * _PAGE
"""Blocks and header of packed bf16 weights, read off the allocator's events."""


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _row(width: int, item: int) -> int:
    """Elements of a row: whole cache lines, and never a multiple of 256. Source: get_good_ld."""
    row = _up(width, 64 // item)
    return row + 64 // item if row % 256 == 0 else row


def _pages(sizes: Sequence[int]) -> int:
    """Bytes of spaces that each begin on a page. Source: set_offsets."""
    return sum(_up(size, _PAGE) for size in sizes)


class _Layer:
    """The sizes of one layer in one direction: T steps of N samples, I features in and H out."""

    def __init__(self, source: torch.Tensor, hidden: int) -> None:
        self.steps, self.samples, self.inputs = source.shape
        self.hidden = hidden
        self.item = source.dtype.itemsize
        self.widest = max(self.inputs, hidden)
        self.states = 2 * (self.steps + 1) * self.samples
        """Rows of the state before the first step and after each, for the layer and for its input."""

    def workspace(self) -> int:
        """Returns the bytes that training keeps: gates, outputs, states and room for their gradients."""
        rows, states, item = self.steps * self.samples, self.states, self.item
        gradients = states * _row(self.widest, 4) * 4
        return _pages(
            [
                rows * _row(_GATES * self.hidden, item) * item,
                rows * _row(self.hidden, item) * item,
                states * _row(self.widest, item) * item,
                states * self.hidden * item,
                gradients,
                gradients,
                states * self.hidden * 4,
            ]
        )

    def scratch(self, steps: int, item: int, *, training: bool, kept: Sequence[int] = ()) -> int:
        """Returns the bytes of the scratchpad.

        Args:
            steps: Steps whose gates are computed at once.
            item: Bytes of a gate's value.
            training: Whether gradients of the output need room.
            kept: Spaces that lie in it where there is no workspace.
        """
        gates = steps * self.samples * _row(_GATES * self.hidden, item) * item
        output = self.samples * _row(self.hidden, self.item) * self.item
        gradient = self.samples * _row(self.hidden, 4) * 4 if training else 0
        return _pages([*kept, gates, output, gradient]) + _BOOKED

    def forward_steps(self) -> int:
        """Returns the steps whose input is multiplied at once."""
        return self.steps if self.samples < _MERGED_BELOW else 1

    def by_input(self, item: int) -> int:
        """Returns the bytes of the weights with one row of gates for each feature."""
        return (self.inputs + self.hidden) * _row(_GATES * self.hidden, item) * item

    def by_gate(self) -> int:
        """Returns the bytes of the weights with one padded row of features for each gate; 0 where they lie so already."""
        rows = [_row(width, self.item) for width in (self.inputs, self.hidden) if _row(width, self.item) != width]
        return _GATES * self.hidden * sum(rows) * self.item


def lstm_layer(*args: Any) -> tuple[torch.Tensor, ...]:
    """Makes what `aten.mkldnn_rnn_layer` returns.

    Args:
        args: Its arguments: the input `[T, N, I]`, four weights, the states `[N, H]`, and settings.

    Returns:
        Output `[T, N, H]`, both states, and the workspace, which is empty where no gradients are recorded.
    """
    source, hidden = args[0], args[5].shape[-1]
    size = _Layer(source, hidden).workspace() if torch.is_grad_enabled() else 0
    return (
        source.new_empty((*source.shape[:2], hidden)),
        torch.empty_like(args[5], memory_format=torch.contiguous_format),
        torch.empty_like(args[6], memory_format=torch.contiguous_format),
        source.new_empty(size, dtype=torch.uint8),
    )


def lstm_layer_backward(*args: Any) -> tuple[torch.Tensor, ...]:
    """Makes what `aten.mkldnn_rnn_layer_backward` returns: float32 gradients, the bias's twice.

    Args:
        args: Its arguments, which begin with the input, four weights and the states.
    """
    source, inner, outer, _, _, hidden, cell = args[:7]
    bias = inner.shape[:1]
    made = (source.shape, inner.shape, outer.shape, bias, bias, hidden.shape, cell.shape)
    return tuple(source.new_empty(shape, dtype=torch.float32) for shape in made)


def layer_row(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[InnerBytes]:
    """The sum of both biases, the weights in the kernel's layout, and the scratchpad.

    Inference in float32 takes kernels whose weights are in blocks of gates; in bf16, packed weights of the matrix product
    on machines without bf16 instructions. It has no workspace, so the states lie in the scratchpad.
    """
    layer = _Layer(args[0], args[5].shape[-1])
    item, hidden = layer.item, layer.hidden
    bias = _GATES * hidden * item
    if torch.is_grad_enabled():
        total = bias + layer.by_input(item) + layer.scratch(layer.forward_steps(), 4, training=True)
        return [InnerBytes(total, AFTER_ALL)]
    kept = [layer.states * _row(layer.widest, item) * item, layer.states * hidden * item]
    if item == 2 and private_torch.adds_bf16_in_float32():
        rows = _up(_GATES * hidden, _PACKED_ROWS)
        columns = _up(layer.inputs, _PACKED_COLUMNS) + _up(hidden, _PACKED_COLUMNS)
        weights = rows * columns * 2 + 2 * _PACKED_BYTES
        steps = layer.forward_steps()
    else:
        weights = _GATES * _up(hidden, private_torch.vector_bytes() // 2) * (layer.inputs + hidden) * item
        steps = 1
    return [InnerBytes(bias + weights + layer.scratch(steps, 4, training=False, kept=kept), AFTER_ALL)]


def backward_row(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[InnerBytes]:
    """Gradients that nobody gave as zeros, 16-bit ones in float32; weights and their gradients in the kernel's layout.

    The gradient of the second bias is a copy that is made at the end, so it is not there yet at the highest point.
    """
    source, output, gradients = args[0], args[7], args[10:13]
    layer = _Layer(source, args[5].shape[-1])
    total = layer.by_gate() + layer.by_input(4) + layer.scratch(layer.steps, layer.item, training=True)
    total += _GATES * layer.hidden * layer.item
    for given, like in zip(gradients, (output, args[5], args[6]), strict=True):
        if given is None or not given.is_contiguous():
            total += like.numel() * layer.item
        if layer.item == 2:
            total += like.numel() * 4
    return [InnerBytes(total, AFTER_ALL)]


def _without_cudnn(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs layers that cuDNN would run by the operators that they are made of elsewhere."""
    warnings.warn(CUDNN_WARNING, SnugfitWarning, stacklevel=2)
    return operator.decompose(*args, **kwargs)


def register() -> None:
    """Puts the layer in the place of torch's fake version, and marks layers of cuDNN; once in a process."""
    aten = torch.ops.aten
    private_torch.replace_fake(aten.mkldnn_rnn_layer.default, lstm_layer)
    private_torch.replace_fake(aten.mkldnn_rnn_layer_backward.default, lstm_layer_backward)
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name in _RUN_BY_CUDNN:
        for overload in ("input", "data"):
            run = functools.partial(_without_cudnn, getattr(getattr(aten, name), overload))
            library.impl(f"{name}.{overload}", run, "AutogradPrivateUse1")  # type: ignore[no-untyped-call]
    _library.append(library)
