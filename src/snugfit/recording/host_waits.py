"""Waits of the host for the card in the middle of a step: where a script asks for them, how often, and what they cost.

A number that is read out of a tensor (`loss.item()`, `float(loss)`, `if mask.any()`), a size that values decide (`nonzero`,
selecting by a mask, `unique`) and a copy to or from memory that is not page-locked make the host wait until the card has
done all that was issued before. Then the card waits for the host, which has issued nothing further.

What it costs is the difference between two clocks of the same recording, one of which does not wait. A step that is bound by
its host or that waits once at its end loses little, and is said to lose little.

Limits: `torch.cuda.synchronize()` and the waits of snugfit's own techniques for their copies are not counted here; the step
is clocked alone, so that what a wait at its end takes from the start of the next one is not seen.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from snugfit.devices import Device
from snugfit.recording.clock import clock, runs_of_step
from snugfit.recording.operator_run import OperatorRun
from snugfit.recording.trace import Trace

WORTH_SHARE = 0.005
"""Waits that cost less than this share of a step are said to cost nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HostWait:
    """One line of a person's code at which the host waits."""

    line: str
    """`file:line`."""
    what: str
    """`reads a number`, `a size that values decide` or `copies`."""
    times: int
    """How often in a step."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HostWaits:
    """All waits of a step."""

    times: int
    """How often the host waits."""
    lines: tuple[HostWait, ...]
    """Where, the most frequent first."""
    lost_seconds: float | None
    """How much shorter the step is predicted to be without them; None where the device's speed is not known."""


def host_waits(trace: Trace, device: Device | None) -> HostWaits | None:
    """Returns the waits that a person's code causes in the last step, None where there are none.

    `device`: the card; None where there is not exactly one.
    """
    steps = Counter(index for index in runs_of_step(trace) if trace.runs[index].blocking and trace.runs[index].line)
    if not steps:
        return None
    found: Counter[tuple[str, str]] = Counter()
    for index, times in steps.items():
        found[trace.runs[index].line, _what(trace.runs[index])] += times
    return HostWaits(
        times=sum(steps.values()),
        lines=tuple(HostWait(line=line, what=what, times=times) for (line, what), times in found.most_common()),
        lost_seconds=None if device is None else _lost_seconds(trace, device, steps),
    )


def _what(run: OperatorRun) -> str:
    if run.operator == "aten._local_scalar_dense.default":
        return "reads a number"
    return "copies" if run.device == "link" else "a size that values decide"


def _lost_seconds(trace: Trace, device: Device, waits: Counter[int]) -> float | None:
    before = clock(trace, device)
    runs = tuple(run._replace(blocking=False) if index in waits else run for index, run in enumerate(trace.runs))
    after = clock(dataclasses.replace(trace, runs=runs), device)
    if before is None or after is None:
        return None
    lost = before.step_seconds - after.step_seconds
    return lost if lost >= WORTH_SHARE * before.step_seconds else 0.0
