"""How long a step takes: every operator on the card, and a host that has to issue them all.

Two clocks run at once. The host walks through the operators and issues them; the card works them off in the order of
its streams. A large batch is bound by the card; a small one by the host, because an operator costs the host the same
time at any size. That is why four microbatches of 4 are slower than one batch of 16, which a roofline does not know.
What one operator takes on the card is in `kernel_times.py`, what a collective takes in `communication.py`.

A collective is an operator in a stream of its own: it runs beside computation until a stream waits for it. Those inside a
machine share one set of links and those between machines another; each set carries them out in the order in which they were
issued, as NCCL does those of a group. Kernels, and copies, of several streams begin in the order in which they are ready.

Every constant has its source beside it; none was fitted to the runs that this clock is checked against.

Limits: all ranks do the same at the same time, kernels of different streams do not share the card, the host is one typical
server core, and data loading is not seen. It is meant to order recipes and to tell host-bound from card-bound, not to
replace a measurement.
"""

from __future__ import annotations

import bisect
import dataclasses
import operator
from collections.abc import Iterator, Sequence

from snugfit.devices import Device
from snugfit.recording.kernel_times import run_seconds
from snugfit.recording.operator_run import OperatorRun
from snugfit.recording.trace import Trace

HOST_OPERATOR_SECONDS = 40e-6
"""Host time of an operator that computes, without the launch: Python, modules, autograd, dispatcher, and the views
around it. Eager PyTorch 2.6 on an A6000 that idles 86 % of the time takes 53.7 ms for 1185 launches, 45 us each
(github.com/facebookresearch/sam2/issues/768). It agrees with torch 2.15 on one 2.5 GHz Xeon core: forward and backward
of a vision transformer of 24 blocks, 16 channels wide, take 44.6 ms of thread time for 951 operators and 2062 views."""
OPTIMIZER_OPERATOR_SECONDS = 3e-6
"""The same of one in an optimizer's loop over parameters, where no module runs and autograd takes nothing down: SGD with
momentum over 1000 parameters, one after the other, takes 2.3 microseconds of thread time an operator on one core of an AMD
EPYC (torch 2.14)."""
HOOK_SHARE = 0.5
"""Host time of a pack or unpack hook of a saved tensor, as a part of an operator's: checkpointing calls three for each
tensor of a block. 13 us where a vision transformer's operators take 15 to 20 on one Xeon core (torch 2.14). With it and
`CAST_SHARE` 20 steps of ten models on an H100 are off by 12.5 % in the mean, without by 17.6 %, and ResNet-50 with all
blocks checkpointed by -10 % instead of -33 % (`benchmarks/results/nvidia-h100-80gb-hbm3-torch2.11.0/clock.jsonl`)."""
CAST_SHARE = 0.25
"""The same of a cast, most of which autocast makes without Python: 4 us on that core."""
HOST_LAUNCH_SECONDS = 5e-6
"""Host time to submit a kernel: 4 to 6 microseconds, measured on an RTX 5070 Ti (susun-blog.com, "pegainfer 3")."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """The predicted time of one step."""

    step_seconds: float
    """From the first operator issued to the last one done."""
    host_seconds: float
    """What the host needs to issue all operators, waits left out."""
    device_seconds: float
    """What the card computes."""
    link_seconds: float
    """What copies between host and card take."""
    flops: int
    """Floating-point operations of the step."""
    communication_seconds: float = 0.0
    """What collectives take, those behind computation included."""
    exposed_communication_seconds: float = 0.0
    """How much later the step ends than if collectives took no time: what computation cannot hide."""
    phase_seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """Phase -> how much later the step ends for it."""

    @classmethod
    def mean(cls, timings: Sequence[Timing]) -> Timing:
        """Returns the mean of several steps."""
        count = len(timings)
        names = [f.name for f in dataclasses.fields(cls) if f.name.endswith("_seconds") and f.name != "phase_seconds"]
        phases = {phase for one in timings for phase in one.phase_seconds}
        return cls(
            **{name: sum(getattr(one, name) for one in timings) / count for name in names},
            flops=sum(one.flops for one in timings) // count,
            phase_seconds={name: sum(one.phase_seconds.get(name, 0.0) for one in timings) / count for name in phases},
        )

    @property
    def bound(self) -> str:
        """What the step waits for most: `host`, `device`, `link` or `ranks` (collectives)."""
        parts = {
            "device": self.device_seconds,
            "host": self.host_seconds,
            "link": self.link_seconds,
            "ranks": self.communication_seconds,
        }
        return max(parts, key=lambda name: parts[name])


def clock(trace: Trace, device: Device, *, step: int | None = None) -> Timing | None:
    """Returns the predicted time of one training step.

    `step`: which step, by the number of its marks; None for the last whole one. A trace without marks is one step.
    The timing; None for devices of which only bytes are known, and where a type has no known speed on the card or a
    collective no known link.
    """
    timing = _timed(trace, device, step)
    if timing is None or not timing.communication_seconds:
        return timing
    alone = _timed(trace, device, step, communicates=False)
    assert alone is not None
    return dataclasses.replace(timing, exposed_communication_seconds=timing.step_seconds - alone.step_seconds)


def _timed(trace: Trace, device: Device, step: int | None, *, communicates: bool = True) -> Timing | None:
    """Runs the two clocks, with collectives that take their time or none."""
    if device.bytes_only:
        return None
    host = host_busy = latest = 0.0
    flops = 0
    ends: dict[int, float] = {}
    streams: dict[int, float] = {}
    engines = {"device": _Engine(), "link": _Engine()}
    collectives: dict[bool, float] = {}
    busy = {"device": 0.0, "link": 0.0, "ranks": 0.0}
    by_phase: dict[str, float] = {}
    known: dict[int, float | None] = {}
    for index in runs_of_step(trace, step):
        run = trace.runs[index]
        seconds = known[index] if index in known else known.setdefault(index, run_seconds(run, device))
        if seconds is None:
            return None
        flops += run.flops
        if run.device == "host":
            ready = max((ends.get(other, 0.0) for other in run.after), default=0.0)
            # The host works itself: it waits for what it needs, and issues nothing else until it is done.
            host = end = max(host + HOST_OPERATOR_SECONDS, ready) + seconds
            host_busy += HOST_OPERATOR_SECONDS + seconds
            ends[index] = host
        else:
            issue = issue_seconds(run, device)
            host += issue
            host_busy += issue
            if run.collective and not communicates:
                seconds = 0.0
            busy[run.device] += seconds
            ready = max(host, streams.get(run.stream, 0.0))
            for other in run.after:
                ready = max(ready, ends.get(other, 0.0))
            if not seconds:
                end = ready
            elif run.collective:
                # One queue for the links inside of machines, and one for those between them.
                far = run.collective.machines > 1
                end = collectives[far] = max(ready, collectives.get(far, 0.0)) + seconds
            else:
                end = engines[run.device].take(ready, seconds, host)
            streams[run.stream] = ends[index] = end
            if run.blocking:
                host = max(host, end)
        if end > latest:
            # Time belongs to the phase that moves the end of the step on.
            by_phase[run.phase] = by_phase.get(run.phase, 0.0) + end - latest
            latest = end
    return Timing(
        step_seconds=max([host, *streams.values()]),
        host_seconds=host_busy,
        device_seconds=busy["device"],
        link_seconds=busy["link"],
        communication_seconds=busy["ranks"],
        flops=flops,
        phase_seconds=by_phase,
    )


_ROUNDING = 1e-12
"""Fewer seconds than this are rounding."""


class _Engine:
    """One resource that does one run at a time; a run that is ready overtakes an earlier one that still waits."""

    __slots__ = ("_end", "_idle")

    def __init__(self) -> None:
        self._end = 0.0
        self._idle: list[tuple[float, float]] = []  # before the end, and not before what the host issues next

    def take(self, ready: float, seconds: float, host: float) -> float:
        """Returns when a run ends that is ready at some time and issued when the host is at `host` seconds."""
        if ready >= self._end:
            begin = max(self._end, host)
            if begin < ready:
                self._idle.append((begin, ready))
            self._end = ready + seconds
            return self._end
        # It fills gaps that others have left while they waited, and goes on behind the last run where those are too
        # short.
        left, end, idle = seconds, ready, self._idle
        self._idle = []
        for begin, until in idle:
            start = max(begin, ready)
            if left and start < until:
                end = min(start + left, until)
                left = max(0.0, left - (end - start)) if end == until else 0.0
                self._idle += [gap for gap in ((begin, start), (end, until)) if gap[0] < gap[1]]
            elif until > host:
                self._idle.append((begin, until))
        if left > _ROUNDING:
            self._end = end = self._end + left
        return end


def issue_seconds(run: OperatorRun, device: Device) -> float:
    """Returns how long issuing an operator keeps the host busy, with the hooks of saved tensors before it."""
    operator = HOST_OPERATOR_SECONDS
    if device.host_operator_seconds is not None:
        operator = device.host_operator_seconds - HOST_LAUNCH_SECONDS
    own = operator
    if run.phase == "optimizer" and not run.operator.startswith(("aten._foreach_", "aten._fused_")):
        own = OPTIMIZER_OPERATOR_SECONDS  # for a list, the time of each tensor in it
    elif run.operator == "aten._to_copy.default" and run.device == "device":
        own = CAST_SHARE * operator
    return own + run.hooks * HOOK_SHARE * operator + run.kernels * HOST_LAUNCH_SECONDS


def runs_of_step(trace: Trace, step: int | None = None) -> Iterator[int]:
    """Yields the indices of the runs of a step as the host issues them, repeated stretches as often as they run.

    `step`: which step, by the number of its marks; None for the last whole one.
    """
    before, last = trace.step_events(step)
    repeats = {repeat.last_run: repeat for repeat in trace.repeats}
    begin = bisect.bisect_right(trace.runs, before, key=_at)
    for index in range(begin, bisect.bisect_right(trace.runs, last, lo=begin, key=_at)):
        yield index
        repeat = repeats.get(index + 1)
        if repeat is not None:
            for _ in range(repeat.times):
                yield from range(repeat.first_run, repeat.last_run)


_at = operator.attrgetter("at")
