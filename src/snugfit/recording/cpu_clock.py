"""How long a step takes on a processor: every operator after the other, at measured speeds.

There is no card to run ahead of. An operator costs what it took when this machine was asked what memory it takes, or else
the larger of its arithmetic and its bytes; in a pass, module and autograd come on top. That is coarse: caches, and the load
of the machine, are not modelled. `snugfit train --budget` times recipes that promise about as much in its first steps.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping
from typing import Any

from snugfit import calibrations
from snugfit.recording.clock import Timing, runs_of_step
from snugfit.recording.operator_run import OperatorRun
from snugfit.recording.trace import Trace

_UPDATE = "optimizer"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HostSpeeds:
    """Measured speeds of a processor."""

    operator_seconds: float
    """What stands around an operator in forward and backward: module, views, autograd."""
    product_rates: tuple[tuple[float, float], ...]
    """FLOPs of a matrix product in float32 -> FLOP/s, by rising size."""
    dtype_factors: Mapping[str, float]
    """Type -> its FLOP/s over those of float32."""
    memory_seconds: tuple[tuple[float, float], ...]
    """Bytes read and written by an operator -> its seconds, by rising size; the first has next to nothing to do."""
    threads: int
    """Threads that torch computed with."""

    def around(self, run: OperatorRun) -> float:
        """Returns the seconds that stand around an operator; an update calls its operators directly."""
        return 0.0 if run.phase == _UPDATE else self.operator_seconds

    def inside(self, run: OperatorRun) -> float:
        """Returns the seconds of an operator: as it was timed, or the larger of its arithmetic and its bytes."""
        if run.seconds is not None:
            return run.seconds
        moved = run.read_bytes + run.written_bytes
        size, most = self.memory_seconds[-1]
        seconds = most * moved / size if moved > size else _between(self.memory_seconds, moved)
        if run.flops:
            count = run.product[0] if run.product else 1
            rate = _between(self.product_rates, run.flops / max(count, 1)) * self.dtype_factors.get(run.dtype, 1.0)
            seconds = max(seconds, run.flops / rate)
        return seconds


def kept_speeds(processor: str, torch_version: str) -> HostSpeeds | None:
    """Returns what `snugfit calibrate` measured of a processor (in words, with its threads); None where it did not."""
    found = calibrations.kept(processor_identity(processor, torch_version))
    if found is None:
        return None
    return HostSpeeds(**{name: _as_written(value) for name, value in found["speeds"].items()})


def processor_identity(processor: str, torch_version: str) -> dict[str, str]:
    """Returns what a calibration of a processor holds for."""
    return {"device": "cpu", "processor": processor, "torch": torch_version}


def _as_written(value: Any) -> Any:
    return tuple(map(tuple, value)) if isinstance(value, list) else value


def _between(table: tuple[tuple[float, float], ...], at: float) -> float:
    """Value at a point of a table, straight between its points and flat outside of them."""
    place = bisect.bisect_left(table, (at, 0.0))
    if place == 0:
        return table[0][1]
    if place == len(table):
        return table[-1][1]
    (left, low), (right, high) = table[place - 1], table[place]
    return low + (high - low) * (at - left) / (right - left)


def cpu_clock(trace: Trace, speeds: HostSpeeds, *, step: int | None = None) -> Timing:
    """Returns the predicted time of one training step on a processor.

    Args:
        trace: A recording of a CPU run.
        speeds: What was measured of the processor.
        step: Which step, by the number of its marks; None for the last one.

    Returns:
        The timing; `link_seconds` are copies into and out of the host pool.
    """
    total = issued = link = 0.0
    flops = 0
    by_phase: dict[str, float] = {}
    for index in runs_of_step(trace, step):
        run = trace.runs[index]
        seconds = cpu_run_seconds(run, speeds)
        if not seconds:
            continue
        total += seconds
        issued += min(seconds, speeds.around(run) + speeds.memory_seconds[0][1])
        flops += run.flops
        link += seconds if run.device == "link" else 0.0
        by_phase[run.phase] = by_phase.get(run.phase, 0.0) + seconds
    return Timing(
        step_seconds=total,
        host_seconds=issued,
        device_seconds=total - issued,
        link_seconds=link,
        flops=flops,
        phase_seconds=by_phase,
    )


def cpu_run_seconds(run: OperatorRun, speeds: HostSpeeds) -> float:
    """Returns how many seconds an operator keeps the processor busy; 0 for a view."""
    if run.kernels == 0 and run.device == "device":
        return 0.0
    return speeds.around(run) + speeds.inside(run)
