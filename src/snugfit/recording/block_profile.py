"""What each block of the model holds at the peak and computes in a step: the per-block profile of an estimate."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from snugfit.devices import Device
from snugfit.recording.anatomy import OUTSIDE, Anatomy, block_of
from snugfit.recording.clock import runs_of_step
from snugfit.recording.kernel_times import run_seconds
from snugfit.recording.trace import Trace


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BlockProfile:
    """One block of the model."""

    name: str
    """Dotted path of the block; `(in no part of the model)` for its own and what no module made."""
    weight_bytes: int
    """Its parameters, as they were built."""
    bytes_by_category: dict[str, int]
    """What tensors that were made in it take at the peak; categories without bytes are left out."""
    flops: int
    """Floating-point operations of its forward, backward and recomputation in a steady step."""
    device_seconds: float | None
    """How long the card computes them; None where no device, or no speed of it, is known."""


def block_profiles(
    trace: Trace, anatomy: Anatomy, weight_bytes: Mapping[str, int], device: Device | None, blocks: Collection[str]
) -> tuple[BlockProfile, ...]:
    """Returns the profile of every block in the order of the model, what is outside of it first.

    `weight_bytes`: module that owns parameters -> their bytes.
    """
    held = {share.name: share.bytes_by_category for share in anatomy.blocks}
    repeated = frozenset(blocks)
    weights: dict[str, int] = {}
    for module, size in weight_bytes.items():
        name = block_of(module, repeated)
        weights[name] = weights.get(name, 0) + size
    flops: dict[str, int] = {}
    seconds: dict[str, float | None] = {}
    timed = device is not None and not device.bytes_only
    for index in runs_of_step(trace):
        run = trace.runs[index]
        name = block_of(run.module, repeated)
        flops[name] = flops.get(name, 0) + run.flops
        if timed and device is not None and run.device == "device":
            one, sum_so_far = run_seconds(run, device), seconds.get(name, 0.0)
            seconds[name] = None if one is None or sum_so_far is None else sum_so_far + one
    names = dict.fromkeys((*weights, *held, *flops))  # in the order in which the model registers its modules
    return tuple(
        BlockProfile(
            name=name,
            weight_bytes=weights.get(name, 0),
            bytes_by_category=dict(held.get(name, {})),
            flops=flops.get(name, 0),
            device_seconds=seconds.get(name, 0.0) if timed else None,
        )
        for name in sorted(names, key=lambda name: name != OUTSIDE)
    )
