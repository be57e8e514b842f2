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
    from snugfit.training.step_outputs import StepOutputs
    from snugfit.training.trainer import Trainer
    from snugfit.workloads.tasks import Task


class Observer:
    """What a measurement overrides to look at a run from outside; this one does nothing."""

    def after_step(self, steps_done: int) -> None:
        """Called when an update was queued on the device; `steps_done` counts those of this process, from 1."""

    def before_evaluation(self) -> None:
        """Called when an evaluation begins."""

    def after_evaluation(self) -> None:
        """Called when an evaluation ended."""


LOSSES_KEPT = 10
"""Steps whose losses may wait on the device until somebody reads them, all at once."""


class Losses:
    """Losses of the last steps, in one tensor on the device: as much memory in the first step as in any other."""

    def __init__(self) -> None:
        """Takes its memory with the first loss."""
        self._kept: Tensor | None = None
        self._count = 0

    def __len__(self) -> int:
        """Returns how many losses wait to be read; the oldest are overwritten where nobody reads them."""
        return min(self._count, LOSSES_KEPT)

    def put(self, loss: Tensor) -> None:
        """Stores a 0-dim loss, on the device."""
        if self._kept is None:
            self._kept = torch.empty(LOSSES_KEPT, dtype=loss.dtype, device=loss.device)
        self._kept[self._count % LOSSES_KEPT].copy_(loss)
        self._count += 1

    def read(self) -> list[float]:
        """Returns the waiting losses in order and empties the list; the host waits for the device once."""
        if self._kept is None:
            return []
        found: list[float] = self._kept[: len(self)].double().tolist()
        self._count = 0
        return found


class Course:
    """A trainer on its way through a run."""

    def __init__(self, trainer: Trainer, task: Task, observer: Observer | None = None) -> None:
        """Begins at the step where the trainer is; `observer` is told of each step and evaluation."""
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

        `batches`: they are let go one by one, before the next is asked for.
        `take`: gets each batch with its loss, which is still on the device.
        `then`: called after each step, for what comes between steps; returns whether to go on.
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
        """Evaluates held-out data between two steps, as `evaluation.add_up`; training is not disturbed.

        `batches`: as for `evaluation.add_up`; of `evaluation.evaluated_at_once` samples.
        `stop`: asked before each batch; True gives up.
        """
        self.observer.before_evaluation()
        try:
            with self.trainer.averaged():
                return add_up(self.trainer, batches, self.task, stop=stop, sample=sample)
        finally:
            self.observer.after_evaluation()

    def state(self) -> dict[str, Any]:
        """Returns the trainer's and the generators' state for a checkpoint, once the steps under way are judged."""
        self.trainer.finish()
        return {"trainer": self.trainer.state_dict(), "random": random_state.capture()}

    def resume(self, state: dict[str, Any]) -> None:
        """Goes on from what `state` returned (or a mapping that has more)."""
        self.trainer.load_state_dict(state["trainer"])
        random_state.restore(state["random"])
        self.first_step = self.trainer.steps_done
