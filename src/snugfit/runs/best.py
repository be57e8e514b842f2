"""The best evaluation of a run: when it was, what it found, what the model held; and whether none was better for too long.

What the model holds is written when an evaluation is the best so far, as one file under the number of its step, tensor by
tensor: no memory is taken for it, and any number of processes reads it back. Which step was the best is kept in the
checkpoints. A run that goes on from one takes that step's file, whatever was written after it, so files go only when no
checkpoint that may be read again counts on them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.atomic_file import remove
from snugfit.errors import InputError, did_you_mean, option, warn
from snugfit.training.run_results import BEST, BEST_WEIGHTS
from snugfit.training.whole_weights import load_state, save_state
from snugfit.workload import Workload

if TYPE_CHECKING:
    from snugfit.training.trainer import Trainer
    from snugfit.workloads.data.splits import Splits
    from snugfit.workloads.tasks import Task

LOSS = "loss"


@dataclasses.dataclass(kw_only=True, slots=True)
class BestSoFar:
    """What a checkpoint stores about the best evaluation so far."""

    step: int = 0
    """Updates done at the best evaluation; 0: there was none with a finite value."""
    value: float = math.nan
    metrics: dict[str, float | None] = dataclasses.field(default_factory=dict)
    """All that this evaluation found, by the names of a run's metrics."""
    since: int = 0
    """Evaluations after it, none of them better."""


def check_best(workload: Workload, task: Task, data: Splits) -> None:
    """Raises `InputError`, before anything is built, unless there is the metric and data to evaluate on."""
    wanted = [name for name in ("patience", "keep_best") if getattr(workload, name) is not None]
    if wanted and data.validation is None:
        raise InputError(
            f"{option(*wanted)}: a run is judged by evaluations on validation data, and {data.name} has none. Give some, or "
            "leave that out."
        )
    known = (LOSS, *task.metric_names)
    if workload.keep_best is not None and workload.keep_best not in known:
        raise InputError(
            f"{option('keep_best')} is {workload.keep_best!r}, which {task.name} does not report; "
            f"{did_you_mean(workload.keep_best, known)}"
        )


class Best:
    """Judges the evaluations of a run."""

    def __init__(self, trainer: Trainer, task: Task, run_dir: Path, agreed: Callable[[float], float]) -> None:
        """Begins with no evaluation.

        `agreed`: from this process's value to the one that all decide by.
        `trainer`: its workload says what is wanted; its model is what is kept.
        """
        self._trainer, self._folder, self._agreed = trainer, run_dir / BEST, agreed
        self._patience, self._kept = trainer.workload.patience, trainer.workload.keep_best is not None
        self.metric = trainer.workload.keep_best or LOSS
        self._rises = task.rises(self.metric)
        self.so_far = BestSoFar()
        self._saved_step = 0

    @property
    def ends(self) -> bool:
        """Whether the run ends, because no evaluation was better for too long."""
        return self._patience is not None and self.so_far.since >= self._patience

    def judge(self, value: float, metrics: Mapping[str, float | None]) -> bool:
        """Takes an evaluation, stores the model where it is the best so far, and returns whether it is."""
        value, before = self._agreed(value), self.so_far.value
        better = math.isnan(before) or (value > before if self._rises else value < before)
        if not better or not math.isfinite(value):
            self.so_far.since += 1
            return False
        step = self._trainer.steps_done
        if self._kept:
            self._folder.mkdir(exist_ok=True)
            save_state(self._trainer, self._file(step))
        self.so_far = BestSoFar(step=step, value=value, metrics=dict(metrics))
        return True

    def saved(self) -> None:
        """Called when a checkpoint was written: deletes best-model files that neither it nor the one before needs."""
        counted = {self._file(step) for step in (self.so_far.step, self._saved_step)}
        self._saved_step = self.so_far.step
        ranks = self._trainer.ranks
        if ranks is None or ranks.number == 0:
            for path in self._folder.glob(BEST_WEIGHTS):
                if path not in counted:
                    remove(path)

    def resume(self, kept: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint's `BestSoFar`; where the file of the best step is gone, from none, with a warning."""
        self.so_far = BestSoFar(**kept)
        self._saved_step = self.so_far.step
        file = self._file(self.so_far.step)
        if self._kept and self.so_far.step and not file.is_file():
            warn(
                f"{str(file)!r} is gone, what the model held at its best evaluation. The best of those to come is kept; to "
                "have that one count, stop, put the file back and resume again."
            )
            self.so_far = BestSoFar(since=self.so_far.since)

    def restore(self) -> bool:
        """Loads the model of the best evaluation where settings want it; returns whether the model is that one now."""
        if not self._kept or not self.so_far.step:
            return False
        if self.so_far.step != self._trainer.steps_done:
            load_state(self._trainer, self._file(self.so_far.step))
        return True

    def to_mapping(self) -> dict[str, Any] | None:
        """Returns the part of the run's result about it; None where nobody asked or no evaluation was finite."""
        if not self.so_far.step or not (self._kept or self._patience is not None):
            return None
        return {
            "metric": f"validation_{self.metric}",
            "value": self.so_far.value,
            "step": self.so_far.step,
            "evaluations_since": self.so_far.since,
            "saved": self._kept,
        }

    def _file(self, step: int) -> Path:
        return self._folder / BEST_WEIGHTS.replace("*", f"{step:08d}")
