"""How long a step takes on a processor: every operator after the other, at measured speeds.

There is no card to run ahead of: an operator costs its fixed time plus the larger of its arithmetic and its bytes. A
processor's cache makes small operators cheaper a byte, and the table of `host_speeds.py` knows that; that a tensor may
still lie in the cache from the operator before is not modelled.
"""

from __future__ import annotations

from snugfit.simulator.clock import Timing, runs_of_step
from snugfit.simulator.host_speeds import HostSpeeds
from snugfit.simulator.trace import OperatorRun, Trace


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
    known: dict[int, float] = {}
    for index in runs_of_step(trace, step):
        run = trace.runs[index]
        if index not in known:
            known[index] = cpu_run_seconds(run, speeds)
        seconds = known[index]
        total += seconds
        issued += speeds.operator_seconds if run.kernels else 0.0
        flops += run.flops
        if run.device == "link":
            link += seconds
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
    """Returns how long an operator keeps the processor busy.

    Args:
        run: The operator.
        speeds: What was measured of the processor.

    Returns:
        Seconds; 0 for a view.
    """
    if run.kernels == 0 and run.device == "device":
        return 0.0
    seconds = speeds.memory_seconds(run.read_bytes + run.written_bytes, run.operator)
    if run.flops:
        count = run.product[0] if run.product else 1
        seconds = max(seconds, speeds.product_seconds(run.flops, run.dtype, count))
    return speeds.operator_seconds + seconds
