"""The course of a run that `prepare` has built: step, evaluate, save. Every run takes it, on real tensors or on fake ones.

The loop of `snugfit train` gives it batches of data and writes what comes out to a run directory; the simulator gives it
fake batches and records what is allocated; benchmarks give it a meter. What happens between is this file's, so a
prediction cannot be about another run than the one that is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from snugfit.phases import phase
from snugfit.training import random_state
from snugfit.training.evaluation import add_up

if TYPE_CHECKING:
    from snugfit.training.step import Trainer
    from snugfit.training.step_outputs import StepOutputs
    from snugfit.workloads.tasks import Task


class Observer:
    """Someone who looks at a run from outside, such as a measurement; this one does not."""

    def after_step(self, steps_done: int) -> None:
        """Called when an update was given to the device.

        Args:
            steps_done: Updates done by this process, from 1.
        """

    def before_evaluation(self) -> None:
        """Called when an evaluation begins."""

    def after_evaluation(self) -> None:
        """Called when an evaluation ended."""


LOSSES_KEPT = 10
"""Steps whose losses may wait on the device until somebody reads them, all at once."""


class Losses:
    """Losses of the last steps, in one tensor on the device: as much memory in the first step as in any other."""

    def __init__(self) -> None:
        """Makes room with the first loss."""
        self._kept: Tensor | None = None
        self._count = 0

    def __len__(self) -> int:
        """Returns how many losses wait; where nobody reads them, the newest."""
        return min(self._count, LOSSES_KEPT)

    def put(self, loss: Tensor) -> None:
        """Keeps a loss.

        Args:
            loss: 0-dim, on the device.
        """
        if self._kept is None:
            self._kept = torch.empty(LOSSES_KEPT, dtype=loss.dtype, device=loss.device)
        self._kept[self._count % LOSSES_KEPT].copy_(loss)
        self._count += 1

    def read(self) -> list[float]:
        """Returns the losses that wait, in order, and keeps them no longer; the host waits for the device once."""
        if self._kept is None:
            return []
        found: list[float] = self._kept[: len(self)].double().tolist()
        self._count = 0
        return found


class Course:
    """A trainer on its way through a run."""

    def __init__(self, trainer: Trainer, task: Task, observer: Observer | None = None) -> None:
        """Begins where the trainer is.

        Args:
            trainer: Model and step.
            task: What is reported of held-out data.
            observer: Told of each step and evaluation.
        """
        self.trainer, self.task = trainer, task
        self.observer = observer or Observer()
        self.losses = Losses()
        self.first_step = trainer.steps_done
        self._outputs: StepOutputs | None = None

    def _step(self, batch: Any) -> Tensor:
        if not self.trainer.workload.keep_outputs:
            return self.trainer.step(batch)
        self._outputs = self.trainer.step(batch, outputs=True)  # held until the next ones are there, as in a loop
        return self._outputs.loss

    def train(
        self,
        batches: Iterable[Any],
        *,
        take: Callable[[Any, Tensor], object] | None = None,
        then: Callable[[], bool] | None = None,
    ) -> None:
        """Takes a step for each batch.

        Args:
            batches: They are let go one by one, before the next is asked for.
            take: Gets each batch with its loss, which is still on the device.
            then: Called after each step, for what comes between steps; returns whether to go on.

        Raises:
            TrainingError: The step failed for good.
        """
        source: Iterator[Any] = iter(batches)
        while True:
            with phase("data"):
                batch = next(source, None)
            if batch is None:
                return
            loss = self._step(batch)
            self.losses.put(loss)
            if take is not None:
                take(batch, loss)
            del loss  # whoever wants it has it; an evaluation must not find it still there
            self.observer.after_step(self.trainer.steps_done - self.first_step)
            if then is not None and not then():
                return
            del batch

    def evaluate(
        self,
        batches: Iterable[Any],
        *,
        stop: Callable[[], bool] = lambda: False,
        sample: Callable[[], Any] | None = None,
    ) -> tuple[Tensor, int] | None:
        """Evaluates held-out data between two steps; training goes on as if nothing had happened.

        Args:
            batches: As for `evaluation.add_up`; of `evaluation.evaluated_at_once` samples.
            stop: Asked before each batch; True gives up.
            sample: As for `evaluation.add_up`.

        Returns:
            As `evaluation.add_up`, for `evaluation.read`.
        """
        self.observer.before_evaluation()
        try:
            with self.trainer.averaged():
                return add_up(self.trainer, batches, self.task, stop=stop, sample=sample)
        finally:
            self.observer.after_evaluation()

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint holds of the trainer and of chance, once the steps under way are judged."""
        self.trainer.finish()
        return {"trainer": self.trainer.state_dict(), "random": random_state.capture()}

    def resume(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint.

        Args:
            state: From `state`; may hold more.
        """
        self.trainer.load_state_dict(state["trainer"])
        random_state.restore(state["random"])
        self.first_step = self.trainer.steps_done
