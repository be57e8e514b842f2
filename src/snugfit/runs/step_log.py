"""What is logged of steps: losses that stay on the device until several are read at once, learning rates, speed.

Logging makes the host wait for the device only every few steps. Evaluation and checkpoints count for no step.
"""

from __future__ import annotations

import inspect
import time
from typing import TYPE_CHECKING, Any

from snugfit.recipe import Recipe
from snugfit.runs.lockstep import Lockstep
from snugfit.runs.loop_result import Position
from snugfit.runs.waits import Waits
from snugfit.training.course import LOSSES_KEPT, Course
from snugfit.training.fallbacks import samples_of
from snugfit.training.optimizers import OPTIMIZER_TABLE
from snugfit.workload import Workload

if TYPE_CHECKING:
    from snugfit.workloads.tasks import Task


def base_learning_rate(recipe: Recipe, workload: Workload) -> float | None:
    """Returns the learning rate before the schedule; None where the optimizer is the caller's own."""
    if workload.lr is not None:
        return workload.lr
    row = OPTIMIZER_TABLE.get(recipe.optimizer or workload.optimizer)
    return None if row is None else float(inspect.signature(row.cls).parameters["lr"].default)


class StepLog:
    """The steps of a loop that are not logged yet, and what all of them add up to."""

    def __init__(self, course: Course, task: Task, at: Position, together: Lockstep) -> None:
        """Starts the clock; `at` gets the sums."""
        self._course, self._trainer, self._task, self._at, self._together = course, course.trainer, task, at, together
        self.waits = Waits()
        self._base_rate = base_learning_rate(self._trainer.recipe, self._trainer.workload)
        self._pending: list[tuple[int, float | None, int, int]] = []
        self.restart_clock()

    def restart_clock(self) -> None:
        """Begins to count the time of steps here, and takes the learning rate of the next one."""
        self._lap_started = time.perf_counter()
        self._rate = self._next_rate()

    def _next_rate(self) -> float | None:
        return None if self._base_rate is None else self._base_rate * self._trainer.lr_factor

    @property
    def is_due(self) -> bool:
        """Whether the losses are to be read."""
        return len(self._pending) >= LOSSES_KEPT or self._trainer.steps_done == 1

    def take(self, batch: Any) -> None:
        """Takes note of a step that was done with a batch."""
        samples = samples_of(batch) or 0  # of several processes, some may have none of the last batch
        weight = int(self._task.weight_of(batch)) if samples else 0  # the batch is still on the host
        self._pending.append((self._trainer.steps_done, self._rate, samples, weight))
        self._rate = self._next_rate()

    def read(self, *, alone: bool = False) -> list[dict[str, Any]]:
        """Returns a row for each step since the last time; the host waits for the device once.

        `alone`: whether other processes may not be there any more, to be asked for their samples.
        """
        if not self._pending:
            return []
        begun = time.perf_counter()
        losses = self._course.losses.read()
        now = time.perf_counter()
        self.waits.device_seconds += now - begun
        lap, self._lap_started = now - self._lap_started, now
        weights = [weight for *_, weight in self._pending]
        samples = sum(count for _, _, count, _ in self._pending)
        if not alone:
            samples, *weights = self._together.sums([samples, *weights])
        at = self._at
        at.samples += samples
        at.step_seconds += lap
        self.waits.step_seconds += lap
        rows = []
        for (step, rate, *_), weight, loss in zip(self._pending, weights, losses, strict=True):
            at.loss_sum += loss if self._task.loss_is_sum else loss * weight
            at.loss_samples += weight
            rows.append(
                {"step": step, "epoch": at.epoch, "loss": loss, "lr": rate, "samples_per_second": samples / lap}
            )
        self._pending.clear()
        return rows
