"""Loss and metrics on held-out data, without touching the training it interrupts.

Batches are no larger than those of training, so that evaluation, which keeps no activations, never needs more memory than
a training step. Nothing is read from the device until the end. One that runs out of memory all the same goes on in smaller
pieces: the model's, whose outputs are joined, and those of loss and metrics, whose sums are; training is not touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from snugfit.errors import OutOfMemoryError, warn
from snugfit.phases import phase
from snugfit.recipe import Recipe
from snugfit.techniques.batches import loss_weights, map_tensors
from snugfit.training import random_state
from snugfit.training.fallbacks import samples_of
from snugfit.training.model_call import Loss, joined, loss_value
from snugfit.training.order import weighted
from snugfit.training.out_of_memory import free_memory, retry_after_freeing, tried
from snugfit.training.passes import Passes
from snugfit.workloads.tasks import Task, task_of_loss
from snugfit.workloads.traits import evaluating

if TYPE_CHECKING:
    from snugfit.training.trainer import Trainer


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What a model is worth on held-out data."""

    loss: float
    """Mean loss over samples, or over the labels that count, as the task says."""

    metrics: dict[str, float]
    """The task's metrics by name, such as `accuracy` (share of samples that are right, 0 to 1) or `perplexity`."""

    samples: int
    """Samples seen."""


def read(added: tuple[Tensor, int] | None, task: Task) -> Evaluation | None:
    """Reads the result of `add_up` from the device."""
    if added is None:
        return None
    totals, samples = added
    values = totals.tolist()
    loss, *means = (total / count for total, count in zip(values[::2], values[1::2], strict=True))
    metrics = dict(zip(task.metrics, means, strict=True))
    metrics.update({name: of_loss(loss) for name, of_loss in task.metrics_of_loss.items()})
    return Evaluation(loss=loss, metrics=metrics, samples=samples)


def task_of(loss: Loss | None, loss_weight: Any = "samples") -> Task:
    """Returns the task of a person's own training, of which only the loss can be reported."""
    return task_of_loss(None if loss is None else functools.partial(loss_value, loss), loss_weight)


def evaluated_at_once(recipe: Recipe, batch_size: int) -> int:
    """Returns how many samples go through the model at once in evaluation: no more than in training."""
    return min(recipe.microbatch_size or batch_size, batch_size)


def add_up(
    trainer: Trainer,
    batches: Iterable[Any],
    task: Task,
    *,
    stop: Callable[[], bool] = lambda: False,
    sample: Callable[[], Any] | None = None,
) -> tuple[Tensor, int] | None:
    """Evaluates a model in eval mode under the recipe's autocast; the result stays on the device for `read`.

    The modules' training modes and the random state are put back, so training goes on as if nothing had happened.

    `batches`: tuples (input, target), or dicts for models that return their loss, on any device.
    `sample`: makes a batch of one sample for a process whose share of a batch is empty: it goes along with the others,
    and what it finds does not count.
    `stop`: asked before each batch; True gives up.
    Returns sums and counts by turns (of the loss, then of each metric) on the device, and the samples seen; None when
    told to stop or when there are no batches.
    """
    totals: Tensor | None = None
    samples = 0
    with phase("evaluation"), undisturbed(trainer.model), torch.no_grad():
        for batch in batches:
            if stop():
                return None
            found = samples_of(batch)
            if found == 0 and sample is not None:
                totals = _with(totals, torch.zeros_like(_sums(trainer, task, sample())), trainer.device)
            else:
                totals = _with(totals, _sums_retried(trainer, task, batch), trainer.device)
            samples += found or 0
            del batch  # the next batch needs its room
        if trainer.ranks is not None and totals is not None:
            totals, samples = (
                trainer.ranks.total(totals),
                int(sum(n for (n,) in trainer.ranks.agree_by_share([samples]))),
            )
    return None if totals is None else (totals, samples)


def _with(totals: Tensor | None, sums: Tensor, device: torch.device) -> Tensor:
    added: Tensor = sums if totals is None else retry_after_freeing(lambda: totals + sums, device)
    return added


def _sums(trainer: Trainer, task: Task, batch: Any) -> Tensor:
    """The sums and counts of one batch."""
    batch = map_tensors(batch, lambda tensor: tensor.to(trainer.device, non_blocking=True))
    output = trainer.evaluate_batch(batch)
    weight = _number(task.weight_of(batch), trainer.device)
    loss = task.loss_of(output, batch).double()
    if not task.loss_is_sum:
        # Where labels are counted there may be none: a mean of 0 / 0 that must not become the mean of everything.
        loss = loss * weight if task.loss_weight == "samples" else weighted(loss, weight)
    sums = [loss, weight]
    for metric in task.metrics.values():
        total, count = metric(output, batch)
        sums += [total.double(), _number(count, trainer.device)]
    return torch.stack(sums)


def _sums_retried(trainer: Trainer, task: Task, batch: Any) -> Tensor:
    """`_sums` once more after freeing memory, then of each half, where memory ran out beside the model."""
    for _ in range(2):
        sums, cause = tried(lambda: _sums(trainer, task, batch))
        if cause is None:
            found: Tensor = sums
            return found
        if trainer.ranks is not None:  # all take the same number of passes
            raise _no_memory(trainer.device, cause)
        free_memory(trainer.device)
    halves, samples = trainer.evaluation.halves(batch), samples_of(batch)
    if not halves:
        raise _no_memory(trainer.device, cause)
    warn(
        f"the loss of {samples} samples in evaluation ran out of memory: {cause} It is taken of each half; training is not "
        "touched."
    )
    totals: Tensor | None = None
    for half in halves:
        totals = _with(totals, _sums_retried(trainer, task, half), trainer.device)
    assert totals is not None
    return totals


def _no_memory(device: torch.device, cause: str | None) -> OutOfMemoryError:
    return OutOfMemoryError(
        f"evaluation ran out of memory on {device} with the smallest piece: {cause} Training is as it was; leave "
        "evaluation out, or resume with a recipe that needs less."
    )


def _number(value: Any, device: torch.device) -> Tensor:
    """A count as a tensor on the device, so that nothing waits for it."""
    if isinstance(value, Tensor):
        return value.double()
    return torch.full((), float(value), dtype=torch.double, device=device)


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Puts a model into eval mode for a while; afterwards its modes and the random state are what they were."""
    before = random_state.capture()
    try:
        with evaluating(model):
            yield
    finally:
        random_state.restore(before)


class EvaluationPieces:
    """Runs batches in pieces, and remembers the largest number of samples that fits."""

    def __init__(self, passes: Passes) -> None:
        """Starts with whole batches."""
        self._passes = passes
        self._size: int | None = None

    def output(self, batch: Any) -> Any:
        """Returns the output for a batch; `OutOfMemoryError` where one sample alone needs too much."""
        samples = samples_of(batch)
        while True:
            output, cause = tried(lambda: self._in_pieces(batch, samples))
            if cause is None:
                return output
            if self._passes.ranks is not None:
                raise _no_memory(self._passes.device, cause)
            free_memory(self._passes.device)
            now = min((size for size in (samples, self._size) if size is not None), default=1)
            if now < 2:
                raise _no_memory(self._passes.device, cause)
            self._size = now // 2
            warn(
                f"evaluation ran out of memory with {now} samples at once: {cause} It goes on with {self._size}; training "
                "is not touched."
            )

    def halves(self, batch: Any) -> list[Any]:
        """Returns a batch in two parts; none where it cannot be cut."""
        samples = samples_of(batch)
        return list(self._passes.split(batch, -(-samples // 2))) if samples is not None and samples > 1 else []

    def _in_pieces(self, batch: Any, samples: int | None) -> Any:
        passes = self._passes
        if self._size is None or samples is None or samples <= self._size:
            return passes.evaluated(batch)
        pieces = list(passes.split(batch, self._size))
        return joined([passes.evaluated(piece) for piece in pieces], loss_weights(pieces, passes.loss_weight))
