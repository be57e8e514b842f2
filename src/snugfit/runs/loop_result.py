"""Where a loop is, which its checkpoints keep, and what it comes to in the end."""

from __future__ import annotations

import dataclasses
import math
import signal
from collections.abc import Mapping
from typing import Any


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

    best: dict[str, Any] | None
    """The best evaluation: `metric`, `value`, `step`, `evaluations_since`, and whether its weights are what is `saved`; None
    where nobody asked."""

    stopped_early: bool
    """Whether the run ended before its last step because no evaluation was better for too long."""

    loading: dict[str, Any]
    """How long this process waited for data, and what to change (`waits.loading_report`)."""

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
    best: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The best evaluation, as `BestSoFar` has it."""


def all_finite(found: Mapping[str, float]) -> dict[str, float | None]:
    """Returns the same with None for infinity and NaN."""
    return {name: finite(value) for name, value in found.items()}


def finite(value: float) -> float | None:
    """Returns None for infinity and NaN, which JSON does not have."""
    return value if math.isfinite(value) else None
