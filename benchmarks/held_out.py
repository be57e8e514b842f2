"""The course of a measured run: steps with an evaluation after the first, by the code that a simulation takes, too."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from snugfit.techniques.batches import batch_length, map_tensors, split_batch
from snugfit.training.course import Course, Observer
from snugfit.training.evaluation import evaluated_at_once, task_of


def take_course(
    trainer: Any,
    batch: Callable[[], Any],
    arguments: Mapping[str, Any],
    *,
    steps: int,
    evaluate: bool = True,
    observer: Observer | None = None,
    on_loss: Callable[[torch.Tensor], object] | None = None,
    unable: tuple[type[Exception], ...] = (),
) -> None:
    """Trains for some steps, and evaluates after the first, as many samples at once as the loop does.

    Args:
        trainer: From `snugfit.prepare`.
        batch: Makes a batch, anew for each step. That of the first is evaluated, in memory of its own, as a loader makes it.
        arguments: The other arguments of `snugfit.prepare`: `loss` and `loss_weight` are looked at.
        steps: How many.
        evaluate: Whether there is an evaluation.
        observer: Told of each step and evaluation.
        on_loss: Gets the loss of each step.
        unable: Errors by which code says that it cannot be evaluated; up to where it fails it is measured.
    """
    course = Course(trainer, task_of(arguments.get("loss"), arguments.get("loss_weight", "samples")), observer)
    first: list[Any] = []
    done = itertools.count(1)

    def held_out() -> Iterator[Any]:
        given = first[0]
        pieces = split_batch(given, evaluated_at_once(course.trainer.recipe, batch_length(given)))
        # As in a simulation, there is a second one, which finds the first still there.
        return (map_tensors(piece, torch.Tensor.clone) for piece in (pieces if len(pieces) > 1 else [*pieces, *pieces]))

    def take(given: Any, loss: torch.Tensor) -> None:
        if on_loss is not None:
            on_loss(loss)
        if evaluate and trainer.steps_done == course.first_step + 1:
            first.append(given)

    def then() -> bool:
        if first:
            with contextlib.suppress(*unable):
                course.evaluate(held_out())
            first.clear()
        return next(done) < steps

    course.train(iter(batch, None), take=take, then=then)
    trainer.finish()
