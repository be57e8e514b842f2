"""Loss and metrics on held-out data, without touching the training it interrupts.

Batches are no larger than those of training, so that evaluation, which keeps no activations, never needs more memory than
a training step. Nothing is read from the device until the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from snugfit.training import random_state
from snugfit.training.phases import phase

if TYPE_CHECKING:
    from snugfit.training.step import Trainer
    from snugfit.workloads.tasks import Task


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What a model is worth on held-out data."""

    loss: float
    """Mean loss over samples."""

    metrics: dict[str, float]
    """The task's metrics by name, such as `accuracy` (share of samples that are right, 0 to 1); means over samples."""

    samples: int
    """Samples seen."""


def evaluate(
    trainer: Trainer,
    batches: Iterable[Any],
    task: Task,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """Evaluates the trainer's model in eval mode, under the recipe's autocast.

    The modules' training modes and the random state are put back, so training goes on as if nothing had happened.

    Args:
        trainer: Its `evaluate_batch(batch)` gives the output.
        batches: Tuples (input, target) on any device.
        task: Loss (a mean over samples) and metrics.
        stop: Asked before each batch; True gives up.

    Returns:
        Means over all samples, or None when told to stop or when there are no batches.
    """
    totals: Tensor | None = None
    samples = 0
    with phase("evaluation"), _undisturbed(trainer.model), torch.no_grad():
        for batch in batches:
            if stop():
                return None
            batch = tuple(part.to(trainer.device, non_blocking=True) for part in batch)
            output = trainer.evaluate_batch(batch)
            sums = [task.loss(output, batch).double() * len(batch[0])]
            sums += [metric(output, batch)[0].double() for metric in task.metrics.values()]
            totals = torch.stack(sums) if totals is None else totals + torch.stack(sums)
            samples += len(batch[0])
    if totals is None:
        return None
    loss, *metrics = (total / samples for total in totals.tolist())
    return Evaluation(loss=loss, metrics=dict(zip(task.metrics, metrics, strict=True)), samples=samples)


@contextlib.contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    before = random_state.capture()
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        random_state.restore(before)
