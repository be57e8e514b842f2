"""How long one operator keeps the card busy, from what it computes and moves and from the card's peaks.

The larger of two counts: floating-point operations over what the card computes in this type, and bytes over what its memory
moves; and a fixed time for each kernel.

- **Bytes.** An elementwise kernel reads and writes everything once; normalisations and what is read across move more
  (`operator_costs.py` says which). A kernel of fewer blocks than the card has streaming multiprocessors (SMs) leaves some
  of them idle, and with them their share of the bandwidth.
- **Matrix products** go by tiles and waves (`product_times.py`), **convolutions** by their kernels (`convolution_times.py`).

Limits: caches are not modelled: an input that is still in the L2 cache is charged in full.
"""

from __future__ import annotations

from snugfit.devices import Device
from snugfit.recording.communication import collective_seconds
from snugfit.recording.convolution_times import Rates, convolution_seconds
from snugfit.recording.operator_run import OperatorRun
from snugfit.recording.product_times import TILE_INNER, around_tile, product_share

KERNEL_SECONDS = 2.5e-6
"""Time of a kernel without work. An addition of 1024 numbers takes 1.1 to 1.3 microseconds
(github.com/pytorch/pytorch/issues/161104), and 1.0 to 1.5 pass from the end of one kernel to the begin of the next in a full
queue (traces of V100 and H100, benchmarks/results/clock_fit.json)."""
MEMORY_SHARE = 0.9
"""Share of the peak bandwidth that a long copy reaches: 4.3 of 4.8 TB/s, measured through PyTorch on one H200. V100 and A100
reach 0.88 to 0.92 (benchmarks/results/clock_fit.json). Hopper reaches less in 16 bits (`sustained`)."""
CORRECTED_MEMORY_SHARE = 0.8
"""The same for cards whose error correction lies in their ordinary memory (GDDR6 of data centres): 0.75 on T4 and P4
(benchmarks/results/clock_fit.json), 0.83 on A40."""
PRODUCT_SHARE = 0.8
"""Share of the peak FLOP/s that a large product of random numbers reaches (power lowers the clock): 788 of 989 TFLOP/s
at 8192 x 8192 x 8192 in bfloat16, measured through PyTorch on one H200. Cards that were measured have their own
(`sustained` in devices.yaml)."""
UNALIGNED_SHARE = 0.5
"""What is left of it in 16 bits where rows do not begin at multiples of 16 bytes, so that a load brings 2 or 4 bytes instead
of 16 (github.com/NVIDIA/cutlass/issues/75: most kernels for tensor cores require aligned accesses of 128 bits). The half is
an estimate."""
NORM_SHARE = 0.9
"""Share of an elementwise kernel's bandwidth that cuDNN's batch norm reaches with enough channels: 0.83 to 0.93 on V100
(benchmarks/results/clock_fit.json)."""
BLOCK_ELEMENTS = 1.55
"""Elements a clock that one block of cuDNN's batch norm with channels first reads or writes, of which there is one for each
channel: what its 512 threads can have under way, whatever the card and the type. V100 in float32, 64 channels: 1.67 forward,
1.37 backward (benchmarks/results/clock_fit.json); A100 in float16: 1.61 and 1.94 with 64 channels, 1.37 and 1.55 over the 11
next largest of ResNet-50 (the profiles of `convolution_times.py`)."""
ROW_SECONDS = 0.3e-6
"""What a layer norm costs an SM for each row besides the bytes: a block of threads for each row, two sums over the block.
V100: 0.14 microseconds, A100: 0.39 (benchmarks/results/clock_fit.json)."""
LINK_SHARE = 256 / (256 + 24)
"""Share of the host link that is payload: 256 bytes in a packet with 24 of header (PCI Express base specification)."""
HOST_MEMORY_BANDWIDTH = 51.2e9
"""Bytes a second of the host's memory, assumed: two channels of DDR4-3200 (JEDEC JESD79-4). For host optimizers."""
_HALVES = ("float16", "bfloat16")


def run_seconds(run: OperatorRun, device: Device) -> float | None:
    """Returns how long an operator keeps card, link, host memory or ranks busy; None where the table lacks a speed."""
    if run.device == "host":
        return (run.read_bytes + run.written_bytes) / (HOST_MEMORY_BANDWIDTH * MEMORY_SHARE)
    if run.device == "link":
        if device.host_link_bandwidth is None:
            return None
        return KERNEL_SECONDS + max(run.read_bytes, run.written_bytes) / (device.host_link_bandwidth * LINK_SHARE)
    if run.collective:
        return collective_seconds(run.collective, device)
    if run.kernels == 0:
        return 0.0
    bandwidth = _bandwidth(device, run.dtype)
    if bandwidth is None:
        return None
    if run.convolution:
        rate, plain = _rate(run.dtype, device), _rate("float32", device)
        if rate is None or plain is None:
            return None
        item = 2 if run.dtype in _HALVES else 8 if run.dtype == "float64" else 4
        rates = Rates(
            rate, plain, bandwidth, device.sm_count, _on_tensor_cores(run, device), _around(run, rate, device)
        )
        passes = convolution_seconds(run.convolution, item, rates)
        return len(passes) * KERNEL_SECONDS + sum(passes) + run.again_bytes / bandwidth
    # Few blocks keep few multiprocessors busy, and each moves so many elements a clock at most.
    if run.blocks and device.sm_count is not None:
        bandwidth = min(
            NORM_SHARE * bandwidth, run.blocks * BLOCK_ELEMENTS * _clock(device) * (2 if run.dtype in _HALVES else 4)
        )
    seconds = (run.read_bytes + run.again_bytes + run.written_bytes) / bandwidth
    if run.flops:
        rate = _rate(run.dtype, device)
        if rate is None:
            return None
        if run.product and device.sm_count is not None:
            rate *= product_share(run.product, device.sm_count, _around(run, rate, device))
        if not run.aligned and run.dtype in _HALVES:
            rate *= UNALIGNED_SHARE
        seconds = max(seconds, run.flops / rate)
    if run.rows and device.sm_count is not None:
        seconds += run.rows * ROW_SECONDS / device.sm_count
    return run.kernels * KERNEL_SECONDS + seconds


def _on_tensor_cores(run: OperatorRun, device: Device) -> bool:
    return run.dtype in (*_HALVES, "tf32") and run.dtype in device.flops


def _around(run: OperatorRun, rate: float, device: Device) -> float:
    """Returns what starting and ending a tile costs, in units of the inner side."""
    if device.sm_count is None:
        return TILE_INNER
    return around_tile(rate, device.sm_count, device.compute_capability, _on_tensor_cores(run, device))


def _clock(device: Device) -> float:
    """Returns the clock rate that the card's peak is stated for; infinity where that is not known."""
    peak, capability = device.flops.get("float32"), device.compute_capability
    if peak is None or capability is None or device.sm_count is None:
        return float("inf")
    lanes = 128 if capability >= (8, 6) else 64
    return peak / (2 * lanes * device.sm_count)


def _bandwidth(device: Device, dtype: str) -> float | None:
    """Returns the bytes a second that long kernels move in a dtype."""
    if device.memory_bandwidth is None:
        return None
    share = CORRECTED_MEMORY_SHARE if device.corrects_in_memory else MEMORY_SHARE
    return device.memory_bandwidth * (device.sustained.get("memory_in_16_bits", share) if dtype in _HALVES else share)


def _rate(dtype: str, device: Device) -> float | None:
    """Returns the FLOP/s of a large matrix product in a dtype."""
    peak = _peak(dtype, device)
    return (
        None
        if peak is None
        else peak
        * device.sustained.get(
            "float32" if peak == device.flops.get("float32") and dtype != "tf32" else "tensor", PRODUCT_SHARE
        )
    )


def _peak(dtype: str, device: Device) -> float | None:
    if dtype == "bfloat16" and dtype not in device.flops and "float32" in device.flops:
        return device.flops["float32"]  # cards before Ampere convert and compute in float32
    if dtype == "tf32" and dtype not in device.flops:
        return device.flops.get("float32")  # the setting has no effect there
    if dtype.startswith("float8"):
        dtype = "float8"
    return device.flops.get(dtype)
