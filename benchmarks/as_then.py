"""What older torch did otherwise than today's: operators of published runs as their torch ran them."""

from __future__ import annotations

import math

import torch

from benchmarks.recorded_calls import Call
from snugfit.devices import Device
from snugfit.recording.kernel_times import MEMORY_SHARE
from snugfit.recording.operator_run import OperatorRun

CASTS_THEN = ("1.10", "1.11", "1.12")
BLOCK_BANDWIDTH = {
    "1.10": (32, 8.5e9), "1.11": (32, 8.5e9), "1.12": (16, 27e9), "1.13": (16, 27e9), "2.3": (16, 27e9), "2.5": (16, 27e9),
}  # fmt: skip
"""torch -> columns and bytes a second, in float32, of a block in the kernel that made the gradients of layer norm's weight
and bias until torch 2.8 (github.com/pytorch/pytorch/pull/148605): one block for so many columns, whatever the number of
rows. Such a block of 512 threads moves 8.5 GB/s with one load a thread under way (github.com/intel/torch-xpu-ops/pull/1880:
77 MB in 9 ms), and with the eight of 1.12 some 16 kB in 0.6 microseconds. torch 2 has blocks of 32 columns and twice as many
threads. In 16 bits a load brings half. The containers of torch 1.7 had apex's layer norm, which sums in two kernels of many
blocks."""

NARROW = 1.13
"""How much longer elementwise kernels in 16 bits took on Hopper until torch 2.6, whose loads were of 8 bytes instead of 16
(github.com/pytorch/pytorch/pull/141959: GELU of 2**29 numbers in bfloat16 0.84 ms before, 0.74 after)."""
HOPPER_THEN = ("1.13", "2.3", "2.5")


def as_then(run: OperatorRun, call: Call, version: str, device: Device) -> OperatorRun:
    """Returns an operator as that torch ran it, by the bytes that it moves again."""
    if version not in BLOCK_BANDWIDTH or device.memory_bandwidth is None:
        return run
    if version in HOPPER_THEN and device.compute_capability == (9, 0) and _narrow(run):
        return run._replace(again_bytes=run.again_bytes + int((NARROW - 1) * (run.read_bytes + run.written_bytes)))
    if run.operator == "aten.native_layer_norm_backward.default":
        columns, rate = BLOCK_BANDWIDTH[version]
        read = call.args[0].nbytes + call.args[1].nbytes
        rate *= 0.5 if call.args[0].dtype in ("float16", "bfloat16") else 1.0
        share = min(1.0, -(-math.prod(call.args[2]) // columns) * rate / (device.memory_bandwidth * MEMORY_SHARE))
        return run._replace(again_bytes=int(read + read / share))
    if run.operator == "aten._to_copy.default" and version in CASTS_THEN and call.args[0].dtype != call.result.dtype:
        # Each element was cast by a switch over types (`LoadWithCast`), two bytes a load; a quarter more is an estimate.
        return run._replace(again_bytes=run.again_bytes + (run.read_bytes + run.written_bytes) // 4)
    return run


def _narrow(run: OperatorRun) -> bool:
    """Whether an operator is elementwise in 16 bits."""
    namespace, name, overload = run.operator.split(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    return run.dtype in ("float16", "bfloat16") and torch.Tag.pointwise in operator.tags
