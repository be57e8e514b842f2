"""How long a step takes on a processor: every operator after the other, at measured speeds.

There is no card to run ahead of: operators cost what they took when this machine was asked for them, each behind others as
in a step, and what modules and autograd add around a call. One that was not asked costs the larger of its arithmetic and its
bytes. A processor's cache makes small operators cheaper a byte, and the table of speeds knows that; that a tensor may still
lie in the cache from the operator before is not modelled.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping
from typing import Any

from snugfit import calibrations
from snugfit.recording.clock import Timing, runs_of_step
from snugfit.recording.trace import ALLOC, CODE, ENGINE, OperatorRun, Trace

_FORWARD, _BACKWARD, _UPDATE = "forward", "backward", "optimizer"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HostSpeeds:
    """Measured speeds of a processor."""

    operator_seconds: float
    """What stands around an operator in forward, beside its call from Python: what autograd notes."""
    product_rates: tuple[tuple[float, float], ...]
    """FLOPs of a matrix product in float32 -> FLOP/s, by rising size."""
    dtype_factors: Mapping[str, float]
    """Type -> its FLOP/s over those of float32."""
    byte_seconds: tuple[tuple[float, float], ...]
    """Bytes read and written by an operator -> seconds a byte, by rising size."""
    operator_factors: Mapping[str, float]
    """Operator -> its seconds over those of an addition that moves the same bytes."""
    threads: int
    """Threads that torch computed with."""
    call_seconds: float | None = None
    """An operator with next to nothing to do, called from Python. Where it is known, operators that were timed on this
    machine count by their own time; None: all count by the speeds."""
    backward_operator_seconds: float | None = None
    """What stands around an operator in backward. Autograd calls it from C++, which may be below nothing beside a call from
    Python; None: as in forward."""
    code_operator_seconds: float | None = None
    """What stands around an operator that is called by code of which autograd notes nothing; None: as in forward."""
    view_seconds: float = 0.0
    """What a view costs in forward."""
    backward_view_seconds: float = 0.0
    """What a view costs in backward."""
    module_seconds: float = 0.0
    """What the call of a module costs beside its operators and views."""
    gradient_seconds: float = 0.0
    """What stands around the gradient of a parameter in backward."""
    pass_seconds: float = 0.0
    """What a forward and a backward pass cost however little is in them."""
    kept_again_seconds: float = 0.0
    """What a tensor costs that a checkpointed block keeps when it is computed again: torch's checkpoint runs Python code for
    it in forward, when it is made again, and when it is used."""
    parameter_seconds: float = 0.0
    """What stands around a parameter in an update."""
    step_seconds: float = 0.0
    """What of a step is outside of its phases."""
    busy_factor: float = 1.0
    """How much longer operators of larger tensors take in a step than behind a few others."""
    few_operators_seconds: float | None = None
    """What a few small operators take at the machine's full speed, by which it is known when it is slower; None: unknown."""

    def around(self, run: OperatorRun) -> float:
        """Returns what stands around an operator.

        Args:
            run: The operator.

        Returns:
            Seconds.
        """
        around, view = self.operator_seconds, self.view_seconds
        if run.caller == ENGINE:
            view = self.backward_view_seconds
            around = around if self.backward_operator_seconds is None else self.backward_operator_seconds
        elif run.caller == CODE and self.code_operator_seconds is not None:
            around = self.code_operator_seconds
        beside = run.modules * self.module_seconds + run.kept_again * self.kept_again_seconds
        return around + run.views * view + beside

    def called(self, run: OperatorRun) -> float:
        """Returns what an operator takes that has nothing to do.

        Args:
            run: The operator.

        Returns:
            Seconds.
        """
        return self.around(run) + (self.call_seconds or 0.0)

    def product_seconds(self, flops: int, dtype: str, count: int = 1) -> float:
        """Returns the time of matrix products.

        Args:
            flops: Floating-point operations of all of them.
            dtype: What they compute in; a type that was not measured counts as float32.
            count: How many there are in the batch.

        Returns:
            Seconds.
        """
        rate = _between(self.product_rates, flops / max(count, 1)) * self.dtype_factors.get(dtype, 1.0)
        return flops / rate

    def memory_seconds(self, moved_bytes: int, operator: str = "") -> float:
        """Returns the time of an operator that moves bytes.

        Args:
            moved_bytes: Bytes read and written.
            operator: Its name, such as `aten.gelu.default`.

        Returns:
            Seconds.
        """
        return moved_bytes * _between(self.byte_seconds, moved_bytes) * self.operator_factors.get(operator, 1.0)


def kept_speeds(processor: str, torch_version: str) -> HostSpeeds | None:
    """Returns what `snugfit calibrate` measured of a processor; None where it did not.

    Args:
        processor: The processor with its instructions and threads, in words.
        torch_version: Version of torch.
    """
    found = calibrations.kept(processor_identity(processor, torch_version))
    if found is None:
        return None
    speeds = {name: _as_written(value) for name, value in found["speeds"].items()}
    return HostSpeeds(**speeds)


def processor_identity(processor: str, torch_version: str) -> dict[str, str]:
    """Returns what a calibration of a processor holds for; arguments as `kept_speeds`."""
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
    flops = passes = 0
    phase = ""
    by_phase: dict[str, float] = {}
    known: dict[int, float] = {}
    for index in runs_of_step(trace, step):
        run = trace.runs[index]
        passes += run.phase == _FORWARD != phase
        phase = run.phase
        if index not in known:
            known[index] = cpu_run_seconds(run, speeds)
        seconds = known[index]
        total += seconds
        issued += min(seconds, speeds.called(run)) if run.kernels else 0.0
        flops += run.flops
        if run.device == "link":
            link += seconds
        by_phase[run.phase] = by_phase.get(run.phase, 0.0) + seconds
    gradients = _gradients(trace, step)
    for name, seconds in (
        (_BACKWARD, passes * (speeds.pass_seconds + gradients * speeds.gradient_seconds)),
        (_UPDATE, gradients * speeds.parameter_seconds + speeds.step_seconds),
    ):
        if seconds:
            by_phase[name] = by_phase.get(name, 0.0) + seconds
        total, issued = total + seconds, issued + seconds
    return Timing(
        step_seconds=total,
        host_seconds=issued,
        device_seconds=total - issued,
        link_seconds=link,
        flops=flops,
        phase_seconds=by_phase,
    )


def _gradients(trace: Trace, step: int | None) -> int:
    """Returns how many gradients a step makes."""
    before, last = trace.step_events(step)
    made = {trace.subjects[at] for at in range(before + 1, last) if trace.kinds[at] == ALLOC}
    return sum(trace.storages[one].category == "gradients" for one in made)


def cpu_run_seconds(run: OperatorRun, speeds: HostSpeeds) -> float:
    """Returns how long an operator keeps the processor busy.

    Args:
        run: The operator.
        speeds: What was measured of the processor.

    Returns:
        Seconds; 0 for a view.
    """
    if run.kernels == 0 and run.device == "device":
        return 0.0
    if run.seconds is not None and speeds.call_seconds is not None:
        return speeds.around(run) + run.seconds * speeds.busy_factor
    seconds = speeds.memory_seconds(run.read_bytes + run.written_bytes, run.operator)
    if run.flops:
        count = run.product[0] if run.product else 1
        seconds = max(seconds, speeds.product_seconds(run.flops, run.dtype, count))
    return speeds.called(run) + seconds
