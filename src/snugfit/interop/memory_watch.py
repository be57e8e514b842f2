"""One training watched from outside: predicted before it, measured during it, and looked after for memory that grows.

What the callbacks of trainers and `watch_memory` share; they only say when what happens.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from snugfit.errors import CannotSimulateError, DoesNotFitError, InputError, did_you_mean, warn
from snugfit.interop.memory_report import Leak, MemoryReport
from snugfit.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    import torch

    from snugfit.interop.survivors import SurvivorWatch
    from snugfit.measure.growth import Growth
    from snugfit.measure.step_peaks import StepPeaks
    from snugfit.simulator.prediction import Estimate

ON_EXCEED = ("warn", "stop")
_LEAST_OF_TENSORS, _LEAST_OF_ALL = 2**12, 2**18
"""Bytes of a step that count as growth: in tensors, and in all that a process allocates, to which histories of logs add, and
what libraries keep of each new shape (oneDNN some 100 KiB)."""
_LARGE_SHARE = 0.25
"""Part of the growth that the tensors which stay must explain to be named as its cause."""


class MemoryWatch:
    """The watch over one training."""

    def __init__(
        self,
        *,
        budget: str | int | None = None,
        on_exceed: str = "warn",
        predict: bool = True,
        leak_alarm: bool = True,
    ) -> None:
        """Checks what is asked.

        `budget`: memory of the device that the training may take, such as "8GiB", or bytes; None: a card's own memory.
        `on_exceed`: whether a prediction above it warns, or stops the training before it has begun.
        """
        self.budget_bytes = None if budget is None else parse_bytes(budget, what="budget")
        if on_exceed not in ON_EXCEED:
            raise InputError(f"on_exceed is {on_exceed!r}; {did_you_mean(str(on_exceed), ON_EXCEED)}")
        self.on_exceed, self.predict, self.leak_alarm = on_exceed, predict, leak_alarm
        self.estimate: Estimate | None = None
        self.leak: Leak | None = None
        self._not_predicted = ""
        self._peaks: StepPeaks | None = None
        self._models: list[torch.nn.Module] = []
        self._growth: Growth | None = None
        self._survivors: SurvivorWatch | None = None
        self._heap: list[int] = []
        self._look_at = 0
        self._exceeded = False

    # -- before

    def before(self, ask: Callable[[str], Estimate], place: torch.device, hint: str = "") -> None:
        """Predicts, and warns or stops where that is more than the budget.

        `ask`: returns the estimate for a device by its name.
        `hint`: what to do where it does not fit.
        """
        if not self.predict:
            return
        from snugfit.training import random_state

        state = random_state.capture()  # samples that are read for it may draw random numbers
        try:
            self.estimate = ask("cpu" if place.type == "cpu" else "local")
        except (CannotSimulateError, InputError) as error:
            self._not_predicted = str(error)
            warn(f"this training was not predicted, and goes on: {error}")
            return
        finally:
            random_state.restore(state)
        over = self._over(self.estimate)
        if over is None:
            self._say(f"memory: predicted {format_bytes(self.estimate.total_bytes)}{self._of_budget()}")
            return
        message = f"{over} Largest: {_largest(self.estimate)}.{hint}"
        if self.on_exceed == "stop":
            raise DoesNotFitError(f"{message} Nothing was trained.")
        warn(message)

    def _of_budget(self) -> str:
        return "" if self.budget_bytes is None else f" of a budget of {format_bytes(self.budget_bytes)}"

    def _over(self, estimate: Estimate) -> str | None:
        """What to say where a prediction is more than there may be."""
        needs = f"the training is predicted to take {format_bytes(estimate.total_bytes)}"
        if self.budget_bytes is not None:
            more = estimate.total_bytes - self.budget_bytes
            if more <= 0:
                return None
            return f"{needs}, {format_bytes(more)} more than the budget of {format_bytes(self.budget_bytes)}."
        if all(fit.fits for fit in estimate.devices):
            return None
        return f"{needs}, and does not fit {estimate.devices[0].name}."

    # -- during

    def begin(self, place: torch.device, models: Iterable[torch.nn.Module], held: Iterable[torch.Tensor] = ()) -> None:
        """Begins to measure.

        `models`: what is trained, and what else has weights beside it.
        `held`: other tensors that are there already, such as an optimizer's state.
        """
        from snugfit.measure.step_peaks import StepPeaks

        self._models = list({id(model): model for model in models}.values())
        weights = (one for model in self._models for table in (model.parameters(), model.buffers()) for one in table)
        gradients = (one.grad for model in self._models for one in model.parameters() if one.grad is not None)
        here = [one for one in (*weights, *gradients, *held) if one.device.type == place.type]
        self._peaks = StepPeaks(place, here)

    def step_ended(self) -> None:
        """Takes a step down, and looks whether memory grows."""
        if self._peaks is None:
            return
        self._peaks.step_ended()
        if self.budget_bytes is not None and not self._exceeded and self._peaks.peak_bytes > self.budget_bytes:
            self._exceeded = True
            peak, budget = format_bytes(self._peaks.peak_bytes), format_bytes(self.budget_bytes)
            warn(f"step {self._peaks.steps} took {peak} of tensors, more than the budget of {budget}.")
        if self.leak_alarm and self.leak is None:
            self._look_for_growth(self._peaks)

    def evaluation_begins(self) -> None:
        """Notes that an evaluation begins."""
        if self._peaks is not None:
            self._peaks.evaluation_begins()

    def evaluation_ended(self) -> None:
        """Notes that an evaluation ended."""
        if self._peaks is not None:
            self._peaks.evaluation_ended()

    def _look_for_growth(self, peaks: StepPeaks) -> None:
        from snugfit.interop.survivors import SurvivorWatch
        from snugfit.measure.growth import grows
        from snugfit.process_memory import heap_in_use_bytes

        if self._survivors is not None:
            if peaks.device.type == "cpu":
                self._heap.append(heap_in_use_bytes() or 0)
            if self._survivors.step_ended():
                self._judge(peaks, self._survivors)
                self._survivors = None
            return
        if peaks.steps < self._look_at:
            return
        self._look_at = peaks.steps + 1 + peaks.steps // 16
        self._growth = None
        if len(peaks.alive) == peaks.steps:
            self._growth = grows(peaks.alive, least_bytes=_LEAST_OF_TENSORS)
        if self._growth is None:
            self._growth = grows(peaks.heap, least_bytes=_LEAST_OF_ALL, stride=peaks.heap_stride)
        if self._growth is not None:
            self._survivors, self._heap = SurvivorWatch(self._models), []
            self._survivors.begin()

    def _judge(self, peaks: StepPeaks, survivors: SurvivorWatch) -> None:
        """Sounds the alarm if what grew goes on growing, and it is known to be in use."""
        assert self._growth is not None
        growth, rows = self._growth, survivors.end()
        staying = sum(row.per_step_bytes for row in rows)
        series = peaks.alive if len(peaks.alive) == peaks.steps else self._heap
        last = series[-3:]
        goes_on = len(last) == 3 and min(after - before for before, after in itertools.pairwise(last)) > (
            growth.per_step_bytes / 2
        )
        named = staying >= _LARGE_SHARE * growth.per_step_bytes
        if not named and not goes_on:
            self._look_at = 2 * peaks.steps
            return
        self.leak = Leak(
            step=peaks.steps,
            per_step_bytes=max(staying, growth.per_step_bytes) if named else growth.per_step_bytes,
            from_bytes=growth.from_bytes,
            to_bytes=growth.to_bytes,
            rows=tuple(rows) if named else (),
            holder=survivors.holder() if named else "",
        )
        warn(str(self.leak))

    # -- after

    def finish(self) -> MemoryReport | None:
        """Ends measuring, says predicted beside measured, and returns it; None where nothing was measured."""
        peaks, self._peaks = self._peaks, None
        if peaks is None:
            return None
        if self._survivors is not None:
            self._survivors.end()
            self._survivors = None
        peaks.stop()
        estimate = self.estimate
        report = MemoryReport(
            device=peaks.device.type,
            predicted_bytes=None if estimate is None else estimate.peak_allocated_bytes,
            measured_bytes=peaks.peak_bytes,
            predicted_reserved_bytes=None if estimate is None else estimate.peak_reserved_bytes,
            measured_reserved_bytes=peaks.reserved_bytes or None,
            steps=peaks.steps,
            step_bytes=dict(peaks.peaks),
            evaluation_bytes=peaks.evaluation_bytes,
            budget_bytes=self.budget_bytes,
            leak=self.leak,
            not_predicted=self._not_predicted,
            estimate=estimate,
        )
        self._say(str(report))
        return report

    def _say(self, line: str) -> None:
        from tqdm import tqdm

        tqdm.write(f"snugfit: {line}", file=sys.stderr)  # above the bars that trainers show


def _largest(estimate: Estimate) -> str:
    rows = sorted(estimate.anatomy_bytes.items(), key=lambda row: -row[1])[:3]
    return ", ".join(f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in rows if size)
