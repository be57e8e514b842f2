"""The loop of a run: epochs over data, evaluation, rows of metrics, checkpoints, and going on where a run stopped.

Losses stay on the device and are read every few steps, all at once, so logging never makes the device wait. Everything that
decides the next step is in the checkpoint (weights, optimizer, schedule, scaler, random state, position in the epoch), and
the order of the data depends on seed and epoch alone, so a resumed run takes the very steps of one that was never stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from snugfit.errors import InputError, OutOfMemoryError, TrainingError, option
from snugfit.runs.best import Best
from snugfit.runs.lockstep import Lockstep
from snugfit.runs.loop_result import LoopResult, Position, all_finite, finite
from snugfit.runs.progress import Progress
from snugfit.runs.run_dir import RunDirectory
from snugfit.runs.step_log import StepLog
from snugfit.runs.stop_signal import StopSignal
from snugfit.runs.waits import loading_report
from snugfit.techniques.batch_share import largest_share
from snugfit.techniques.loading.apply import fetch
from snugfit.training.course import Course, Observer
from snugfit.training.evaluation import Evaluation, evaluated_at_once, read
from snugfit.training.other_model import OtherModelError
from snugfit.workloads.data.splits import Splits
from snugfit.workloads.loader import batches, steps_per_epoch

if TYPE_CHECKING:
    from snugfit.training.trainer import Trainer
    from snugfit.workloads.tasks import Task

STATE_VERSION = 1


@dataclasses.dataclass(eq=False, repr=False)
class Loop:
    """One run of training, from its first or its saved step to the end."""

    trainer: Trainer
    """Model and step; its workload has a `batch_size`."""
    data: Splits
    """Training, validation and test samples."""
    task: Task
    """Loss and metrics of the evaluation."""
    run_dir: RunDirectory
    """Where rows and checkpoints go."""
    _: dataclasses.KW_ONLY
    total_steps: int
    """Updates of the whole run."""
    observer: Observer | None = None
    """Told of each step."""
    progress: Progress | None = None
    """Shows the run to a person; None: nobody looks."""
    on_row: Callable[[Mapping[str, Any]], None] = lambda row: None
    """Gets each row of metrics too."""

    def __post_init__(self) -> None:
        self.workload = self.trainer.workload
        assert self.workload.batch_size is not None
        self.batch_size: int = self.workload.batch_size
        self.course = Course(self.trainer, self.task, self.observer)
        self.steps_per_epoch = steps_per_epoch(self.data.train, self.batch_size)
        self.at = Position()
        self.together = Lockstep(self.trainer.ranks, StopSignal())
        self.steps = StepLog(self.course, self.task, self.at, self.together)
        self.best = Best(self.trainer, self.task, self.run_dir.path, self.together.first_of)
        self._saved_step = self.trainer.steps_done
        self._resumed_at = time.perf_counter()

    def resume(self) -> bool:
        """Takes up the newest undamaged checkpoint and returns True; False where the run never saved one."""
        self.run_dir.check_checkpoints()
        try:
            state = self.run_dir.checkpoints.load_newest(self.run_dir.parts_of(self.trainer))
            if state is not None:
                self.course.resume(state)
        except OtherModelError as error:
            raise InputError(
                f"the run in {str(self.run_dir.path)!r} cannot go on with another model: {error} Put back what builds "
                f"it, or start another run ({option('overwrite')} in place of {option('resume')}, or another folder)."
            ) from error
        if state is not None:
            for name, value in state["position"].items():
                setattr(self.at, name, value)
            self.best.resume(self.at.best)
            self._saved_step = self.trainer.steps_done
        self.run_dir.rewind_metrics(self.at.rows)
        return state is not None

    def train(self, stop: StopSignal | None = None) -> LoopResult:
        """Trains to the end, or until a signal (`stop`: a catcher that is open already). Everything is saved then.

        Where nothing fits, the last whole step is saved, unless an update ended half way.
        """
        self._resumed_at = time.perf_counter()
        self.steps.restart_clock()
        with contextlib.ExitStack() as stack:
            self.together.stop = stop if stop is not None else stack.enter_context(StopSignal())
            try:
                self._train_steps()
            except TrainingError as error:
                with contextlib.suppress(TrainingError):
                    self._read_losses(alone=True)
                    self._write(self.run_dir.flush_metrics)
                    if (
                        isinstance(error, OutOfMemoryError)
                        and error.undone
                        and self.trainer.ranks is None
                        and self._saved_step < self.trainer.steps_done
                    ):
                        self._save()
                raise
            if not self.together.stopped_by:
                self._leave_what_was_evaluated()
            if self.workload.evaluate and not self.together.stopped_by:
                self._evaluate_test()
        return self._result()

    def _leave_what_was_evaluated(self) -> None:
        """Puts into the model what the run leaves: that of the best evaluation, or the averages, or what it holds."""
        averages, self.trainer.averages = self.trainer.averages, None
        if averages is not None:
            self.trainer.finish()
            averages.exchange()
        if self.workload.evaluate and self.best.restore():
            self.at.metrics.update(self.best.so_far.metrics)

    def _train_steps(self) -> None:
        # A run that was stopped between a step and its evaluation makes up for it first.
        self._evaluate_if_due()
        while self._goes_on:
            if self.at.batch >= self.steps_per_epoch:
                self._read_losses()
                self.at.epoch, self.at.batch, self.at.loss_sum, self.at.loss_samples = self.at.epoch + 1, 0, 0.0, 0
            epoch = self._batches(self.data.train, self.batch_size, epoch=self.at.epoch, start=self.at.batch)
            epoch = self.together.seeded(epoch, self.workload.seed, lambda: self.trainer.steps_done)
            with contextlib.closing(epoch):  # ends the loading processes of an epoch that is left early
                self.course.train(self.steps.waits.counted(epoch), take=self._take, then=self._go_on)
        if self._saved_step < self.trainer.steps_done:
            self._save()

    def _take(self, batch: Any, loss: Tensor) -> None:
        self.at.batch += 1
        self.steps.take(batch)

    def _go_on(self) -> bool:
        """Does what is due after a step; returns whether another one follows in this epoch."""
        if self.progress is not None:
            self.progress.advance()
        if self.steps.is_due:
            self._read_losses()
        self._evaluate_if_due()
        if self._due(self.workload.save_every):
            self._save()
        return self._goes_on

    @property
    def _goes_on(self) -> bool:
        """Whether another step follows."""
        return self.trainer.steps_done < self.total_steps and not self.together.stopped_by and not self.best.ends

    def _evaluate_if_due(self) -> None:
        step = self.trainer.steps_done
        due = step >= self.total_steps or self._due(self.workload.eval_every)
        if due and self.workload.evaluate and self.at.evaluated_step < step and not self.together.stopped_by:
            measured = self._evaluate("validation", self.data.validation)
            if measured is not None:
                self._judge(measured)
            # Without validation data nothing is due again either.
            if measured is not None or not self.together.stopped_by:
                self.at.evaluated_step = step

    def _judge(self, measured: Evaluation) -> None:
        """Looks whether an evaluation is the best so far."""
        found = self._named("validation", measured)
        with self._between_steps(), self.trainer.averaged():
            self._write(lambda: self.best.judge(found[f"validation_{self.best.metric}"], all_finite(found)))
        if self.best.ends and self.progress is not None:
            self.progress.say(
                f"step {self.trainer.steps_done}/{self.total_steps}: no better validation {self.best.metric} in "
                f"{self.best.so_far.since} evaluations, the last; step {self.best.so_far.step} had the best."
            )

    def _due(self, every: int | None) -> bool:
        if every is None:
            return self.at.batch == self.steps_per_epoch
        return self.trainer.steps_done % every == 0

    def _batches(
        self, dataset: Any, size: int, *, epoch: int = 0, start: int = 0, shuffle: bool = True
    ) -> Generator[Any, None, None]:
        return batches(
            dataset,
            batch_size=size,
            seed=self.workload.seed,
            epoch=epoch,
            start=start,
            shuffle=shuffle,
            workers=self.trainer.recipe.workers,
            pin_memory=self.trainer.recipe.pin_memory,
            prefetch=self.trainer.recipe.prefetch,
            share=self.together.share,
        )

    def _read_losses(self, *, alone: bool = False) -> None:
        """Writes the rows of the last steps; `alone`: whether other processes may not be there any more."""
        rows = self.steps.read(alone=alone)
        for row in rows:
            self._row(row)
        if rows and self.progress is not None:
            self.progress.show(rows[-1]["loss"], rows[-1]["samples_per_second"])

    def _evaluate_test(self) -> None:
        self._evaluate("test", self.data.test)
        self._write(self.run_dir.flush_metrics)

    def _evaluate(self, name: str, dataset: Any) -> Evaluation | None:
        if dataset is None:
            return None
        with self._between_steps():
            self.trainer.finish()
            share = largest_share(self.trainer.recipe, self.workload) or self.batch_size
            size = evaluated_at_once(self.trainer.recipe, share) * self.together.share[1]
            held_out = self.together.telling(self._batches(dataset, min(size, len(dataset)), shuffle=False))
            added = self.course.evaluate(
                held_out, stop=lambda: self.together.stopped_by is not None, sample=lambda: fetch(dataset, [0])
            )
            measured = read(added, self.task)
        if measured is not None:
            found = self._named(name, measured)
            self.at.metrics.update(all_finite(found))
            self._row({"step": self.trainer.steps_done, "epoch": self.at.epoch, **found})
            if self.progress is not None:
                told = ", ".join(f"{key.replace('_', ' ')} {value:.4f}" for key, value in found.items())
                self.progress.say(f"step {self.trainer.steps_done}/{self.total_steps}: {told}")
        return measured

    def _named(self, name: str, measured: Evaluation) -> dict[str, float]:
        return {f"{name}_{metric}": value for metric, value in {**measured.metrics, "loss": measured.loss}.items()}

    def _save(self) -> None:
        with self._between_steps():
            state = {"version": STATE_VERSION, **self.course.state()}
            now = time.perf_counter()
            self.at.seconds += now - self._resumed_at
            self._resumed_at = now
            self.at.rows, self.at.best = self.run_dir.rows, dataclasses.asdict(self.best.so_far)
            state["position"] = dataclasses.asdict(self.at)
            self._write(self.run_dir.flush_metrics)
            parts = self.run_dir.parts_of(self.trainer)
            self._write(lambda: self.run_dir.checkpoints.save(self.trainer.steps_done, state, parts))
            self.run_dir.note_checkpoint(self.trainer.steps_done)
            self.best.saved()
            self._saved_step = self.trainer.steps_done

    @contextlib.contextmanager
    def _between_steps(self) -> Iterator[None]:
        """Stops the clock of the steps before, does something, and starts a new one."""
        self._read_losses()
        yield
        self.steps.restart_clock()

    def _row(self, row: dict[str, Any]) -> None:
        clean = {key: finite(value) if isinstance(value, float) else value for key, value in row.items()}
        self._write(lambda: self.run_dir.log(clean))
        self.on_row(clean)

    def _write(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            raise TrainingError(
                f"the run directory {str(self.run_dir.path)!r} takes no more after step {self.trainer.steps_done}: "
                f"{error.strerror or error}. Make room for it."
            ) from error

    def _result(self) -> LoopResult:
        seconds = self.at.seconds + time.perf_counter() - self._resumed_at
        mean = self.at.loss_sum / self.at.loss_samples if self.at.loss_samples else None
        names = [f"{part}_{name}" for part in ("validation", "test") for name in ("loss", *self.task.metric_names)]
        return LoopResult(
            steps=self.trainer.steps_done,
            seconds=seconds,
            samples_per_second=self.at.samples / self.at.step_seconds if self.at.step_seconds else 0.0,
            metrics={
                "train_loss": None if mean is None else finite(mean),
                **{name: self.at.metrics.get(name) for name in names},
            },
            best=self.best.to_mapping(),
            stopped_early=self.best.ends and self.trainer.steps_done < self.total_steps,
            loading=loading_report(self.steps.waits, self.trainer.recipe, on_card=self.trainer.device.type != "cpu"),
            stopped_by=self.together.stopped_by,
        )
