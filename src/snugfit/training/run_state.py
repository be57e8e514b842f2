"""Where a run is, what it came to, and who looks on: the plain data of the loop."""

from __future__ import annotations

import dataclasses
import signal
from typing import Any, Protocol


class TrainingData(Protocol):
    """Data in three parts; each gives batches by index, or is None where there is none."""

    @property
    def train(self) -> Any:
        """What the model learns from."""

    @property
    def validation(self) -> Any:
        """What is looked at during training."""

    @property
    def test(self) -> Any:
        """What is looked at in the end."""


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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LoopResult:
    """What a run came to."""

    steps: int
    """Updates done, those of earlier processes included."""

    seconds: float
    """Wall time of the loop: steps, evaluation and checkpoints, earlier processes included."""

    samples_per_second: float
    """Samples trained per second of training steps, evaluation and checkpoints left out."""

    metrics: dict[str, float | None]
    """`train_loss` (mean over the last epoch, or what was seen of it), `validation_loss`, `test_loss`, and the task's
    metrics, such as `validation_accuracy` and `test_accuracy`; None where the run was stopped before."""

    stopped_by: signal.Signals | None
    """The signal that ended the run early, with its state saved; None: the run is finished."""


@dataclasses.dataclass(kw_only=True, slots=True)
class Position:
    """Where a run is, beside the trainer's own state."""

    epoch: int = 0
    batch: int = 0
    """Batches of this epoch that are done."""
    evaluated_step: int = 0
    rows: int = 0
    """Rows of metrics that belong to the checkpoint."""
    loss_sum: float = 0.0
    """Over the samples of this epoch, or the labels that count."""
    loss_samples: int = 0
    """How many those were."""
    samples: int = 0
    """Trained in the whole run."""
    step_seconds: float = 0.0
    seconds: float = 0.0
    metrics: dict[str, float | None] = dataclasses.field(default_factory=dict)
