"""Sizes that tensor cores cannot load whole: what they cost in a step, and which size would be as good as it gets.

A load brings 16 bytes, which are 8 numbers in 16 bits. A vocabulary of 50257, a hidden size of 1001 or 10 classes make
rows that begin anywhere, and kernels for tensor cores are slower there or have to turn and pad their operands first (NVIDIA,
"Matrix Multiplication Background User's Guide" and "Convolutional Layers User's Guide").

No rule of thumb says how much: every such operator is asked for its time once more at padded sizes, the next multiples of 8,
64 and 128, and the step is clocked with the best of the three. So a step that waits for its host loses nothing by an odd
size, and is said to lose nothing.

Limits: only matrix products and convolutions are asked. What else becomes larger with a padded size (a softmax over the
vocabulary, the update of the weights) is not counted; it grows by the share that is padded.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection

from snugfit.devices import Device
from snugfit.recording.clock import clock, runs_of_step
from snugfit.recording.convolution_times import CHANNELS_TOGETHER
from snugfit.recording.kernel_times import run_seconds
from snugfit.recording.operator_run import OperatorRun
from snugfit.recording.trace import Trace

MULTIPLES = (8, 64, 128)
"""Sizes are padded to multiples of one of these, of the smallest that is fastest: what a load brings in 16 bits, and the
sides of tiles (`product_times.TILES`)."""
WORTH_SHARE = 0.005
"""A size that costs less than this share of a step is not named."""
_HALVES = ("float16", "bfloat16")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class UnevenSize:
    """Sizes that occur in the same operators, and what padding them would gain."""

    sizes: tuple[int, ...]
    """The sizes, such as 50257; several where the same operators have them all."""
    padded: tuple[int, ...]
    """What they would best be."""
    dtype: str
    """What the operators compute in."""
    operators: int
    """Operators of a step that have them."""
    modules: tuple[str, ...]
    """The modules of these operators, in the order in which they run."""
    lost_seconds: float
    """How much shorter the step is predicted to be with the padded sizes."""


def uneven_sizes(trace: Trace, device: Device) -> tuple[UnevenSize, ...]:
    """Returns the sizes that cost a noticeable part of the last step, the most expensive first.

    One row for all operators that share the same sizes; none for devices whose speed is not known, or without tensor
    cores for the types in use.
    """
    steps = Counter(runs_of_step(trace))
    groups: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    for index in steps:
        sizes = _sizes(trace.runs[index], device)
        if sizes:
            groups[trace.runs[index].dtype, sizes].append(index)
    before = clock(trace, device) if groups else None
    if before is None:
        return ()
    least, found = WORTH_SHARE * before.step_seconds, []
    for (dtype, sizes), uneven in groups.items():
        modules = dict.fromkeys(trace.runs[index].module for index in uneven)
        # The forward product of a layer with an odd number of outputs loads whole rows; it is padded with the others.
        grown = {index for index in steps if index in uneven or _has(trace.runs[index], dtype, sizes, modules)}
        ways = [_padded(trace, grown, {size: _up(size, multiple) for size in sizes}) for multiple in MULTIPLES]
        busy = [
            sum(steps[index] * (run_seconds(way.runs[index], device) or 0.0) for index in grown)
            for way in (trace, *ways)
        ]
        best = min(range(len(ways)), key=busy[1:].__getitem__)
        if busy[0] - busy[1 + best] < least:  # a step gains no more than its operators do
            continue
        after = clock(ways[best], device)
        lost = 0.0 if after is None else before.step_seconds - after.step_seconds
        if lost >= least:
            found.append(
                UnevenSize(
                    sizes=sizes,
                    padded=tuple(_up(size, MULTIPLES[best]) for size in sizes),
                    dtype=dtype,
                    operators=sum(steps[index] for index in uneven),
                    modules=tuple(module for module in modules if module),
                    lost_seconds=lost,
                )
            )
    return tuple(sorted(found, key=lambda one: -one.lost_seconds))


def _sizes(run: OperatorRun, device: Device) -> tuple[int, ...]:
    """The sizes of a tensor-core operator that are no multiples of a load of 16 bytes, the largest first."""
    if run.device != "device" or run.dtype not in device.flops:
        return ()
    shape = run.convolution
    if shape:
        dense = shape.groups == 1 and run.dtype in (*_HALVES, "tf32")
        channels = {shape.inputs, shape.outputs} if dense else set()
        return tuple(sorted((size for size in channels if size % CHANNELS_TOGETHER), reverse=True))
    sides = run.product[1:] if run.product and run.dtype in _HALVES else ()
    return tuple(sorted((size for size in run.uneven if size in sides), reverse=True))


def _has(run: OperatorRun, dtype: str, sizes: tuple[int, ...], modules: Collection[str]) -> bool:
    """Whether an operator is a product of these modules with one of these sizes, and loads whole rows."""
    return bool(run.product) and run.dtype == dtype and run.module in modules and bool({*sizes} & {*run.product[1:]})


def _padded(trace: Trace, indices: Collection[int], to: dict[int, int]) -> Trace:
    """The recording with some sizes padded in some operators."""
    runs = list(trace.runs)
    for index in indices:
        runs[index] = padded_run(runs[index], to)
    return dataclasses.replace(trace, runs=tuple(runs))


def padded_run(run: OperatorRun, to: dict[int, int]) -> OperatorRun:
    """Returns a matrix product or convolution with sizes replaced (`to`: size -> other size)."""
    shape = run.convolution
    if shape:
        return run._replace(
            convolution=shape._replace(
                inputs=to.get(shape.inputs, shape.inputs), outputs=to.get(shape.outputs, shape.outputs)
            )
        )
    assert run.product
    batch, *sides = run.product
    rows, columns, inner = sides
    high, wide, deep = (to.get(side, side) for side in sides)
    return run._replace(
        product=(batch, high, wide, deep),
        flops=run.flops * high * wide * deep // (rows * columns * inner),
        read_bytes=run.read_bytes * (high + wide) * deep // ((rows + columns) * inner),
        written_bytes=run.written_bytes * high * wide // (rows * columns),
        uneven=tuple(size for size in run.uneven if size not in to),
    )


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
