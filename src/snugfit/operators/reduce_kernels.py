"""What sums over many rows take inside themselves on CUDA: partial sums of several blocks, before they are added up.

Where few results come from many inputs each (the gradient of a bias or a norm's weight from all tokens), several blocks
share a result, and each writes its part to memory first. How many do, follows from the sizes and from how many blocks the
card holds at a time: those of an A100, of an H100 and of a V100 stand for their generations.

Source: `setReduceConfig`, `set_block_dimension` and `global_memory_size` in aten/src/ATen/native/cuda/Reduce.cuh of torch,
and how `TensorIterator` orders and joins dimensions. Equal to the byte to what an allocator recorded in the gradients of 49
norms, 8 MiB and 32 MiB each (github.com/Wedsonlin/assignment2-systems, results/medium_*_training_memory_snapshot.pickle),
and to what an H100 took (`benchmarks/gpu/kernel_probe.py`), but for 4 bytes a block of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from snugfit.recording.generations import GENERATIONS, Capability, generation_of

_WARP = 32
_MAX_THREADS = 512
_MIN_VALUES, _MAX_VALUES = 16, 256
"""Inputs that a thread should add up, at least and at most."""
_VECTOR = 4
_THREADS = {(8, 0): 108 * 2048, (9, 0): 132 * 2048, (7, 5): 80 * 2048}
"""Generation -> threads that a card of it runs at a time."""


class _Dimension(NamedTuple):
    size: int
    stride: int
    out_stride: int


def scratch_bytes(
    tensor: torch.Tensor,
    reduced: Sequence[int] | None,
    item_bytes: int = 4,
    capability: Capability = GENERATIONS[0],
) -> int:
    """Returns the bytes of partial sums of a reduction; `item_bytes` is the size of one partial sum.

    `reduced`: its dimensions that are summed over; None or none: all.
    """
    over = {dimension % tensor.dim() for dimension in reduced} if reduced and tensor.dim() else set(range(tensor.dim()))
    inputs, outputs = _dimensions(tensor, over)
    count, results = math.prod(one.size for one in inputs), math.prod(one.size for one in outputs)
    if not inputs or not results or not count:
        return 0
    along_inputs = not outputs or inputs[0].stride < outputs[0].stride
    vector = 1
    wide, high = (count, results) if along_inputs else (results, count)
    if along_inputs:
        if inputs[0].stride == 1 and count > 128 and len(inputs) == 1 and not outputs:
            wide //= _VECTOR
    elif outputs[0].stride == 1:
        vector = _vector(outputs[0].size, [one.stride for one in (*inputs, *outputs[1:])])
        wide //= vector
    width, height = _block(wide, high, _MAX_THREADS // vector)
    values, step = (-(-count // width), 1) if along_inputs else (count, width)
    if values < min(height * 16, _MAX_VALUES):
        return 0
    values = -(-values // height)
    grid = -(-(results // vector) // step)
    target = _THREADS[generation_of(capability)] // (width * height)
    if values < _MAX_VALUES or grid > target:
        return 0
    blocks = max(min(-(-target // grid), -(-values // _MIN_VALUES)), -(-values // _MAX_VALUES))
    if blocks <= 1:
        return 0
    return item_bytes * results * blocks * (1 if along_inputs else width * vector)


def _dimensions(tensor: torch.Tensor, over: set[int]) -> tuple[list[_Dimension], list[_Dimension]]:
    """The dimensions that are summed over, and those that stay: the fastest first, adjacent ones merged."""
    inputs, outputs = [], []
    out_stride = 1
    for dimension in reversed(range(tensor.dim())):
        size, stride = tensor.shape[dimension], tensor.stride(dimension)
        if dimension in over:
            inputs.append(_Dimension(size, stride, 0))
        else:
            outputs.append(_Dimension(size, stride, out_stride))
            out_stride *= size
    inputs.sort(key=lambda one: one.stride)
    return _joined(inputs), _joined(outputs)


def _joined(dimensions: list[_Dimension]) -> list[_Dimension]:
    found: list[_Dimension] = []
    for one in dimensions:
        if one.size == 1:
            continue
        last = found[-1] if found else None
        if last and last.stride * last.size == one.stride and last.out_stride * last.size == one.out_stride:
            found[-1] = last._replace(size=last.size * one.size)
        else:
            found.append(one)
    return found


def _vector(size: int, strides: Sequence[int]) -> int:
    """How many results a thread computes at once: sizes and strides must be multiples of it."""
    vector = _VECTOR
    while any(number % vector for number in (size, *strides)):
        vector //= 2
    return vector


def _block(wide: int, high: int, threads: int) -> tuple[int, int]:
    """Width and height of a block of threads."""
    wide, high = (threads if size >= threads else 1 << max(size.bit_length() - 1, 0) for size in (wide, high))
    height = min(high, threads // min(wide, _WARP))
    return min(wide, threads // height), height
