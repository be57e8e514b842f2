"""Tasks: what a model's output is judged by. One row for each; a new task is a new row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from snugfit.errors import InputError, did_you_mean

Batch = Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What is trained for and what is reported."""

    name: str
    """How the task is asked for."""

    loss: Callable[[Any, Batch], torch.Tensor]
    """From the model's output and the batch to a 0-dim loss."""

    loss_weight: str
    """How losses of microbatches combine: samples (the loss is a mean over samples), sum or tokens."""

    metrics: Mapping[str, Callable[[Any, Batch], tuple[torch.Tensor, int]]]
    """Name -> from output and batch to (sum of the metric over the batch, 0-dim; number of samples). Sums and numbers
    add up over batches; their quotient is the metric."""

    main_metric: str
    """The metric that is shown first; higher is better."""


def classification_logits(output: Any) -> torch.Tensor:
    """Returns the scores in the output of a classifier.

    Args:
        output: `[B, classes]`, or what some models give in training: an object with `logits`, a tuple of scores and
            auxiliary scores, or a dictionary with `logits` or `out`.

    Returns:
        Scores, `[B, classes]`.

    Raises:
        InputError: The output holds no scores.
    """
    found = output
    if isinstance(output, Mapping):
        found = output.get("logits", output.get("out"))
    elif hasattr(output, "logits"):
        found = output.logits
    elif isinstance(output, tuple | list) and output:
        found = output[0]
    if not isinstance(found, torch.Tensor) or found.dim() != 2:
        shape = f"a tensor of shape {list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise InputError(
            f"the model's output is {shape}; image-classification needs scores of shape [batch, classes]. "
            "Use a classification model, or pass your own loss in Python."
        )
    return found


def cross_entropy(output: Any, batch: Batch) -> torch.Tensor:
    """Returns the cross entropy, mean over samples.

    Args:
        output: What the model gave.
        batch: (images, labels int64 `[B]`).

    Returns:
        0-dim loss.
    """
    return torch.nn.functional.cross_entropy(classification_logits(output), batch[1])


def correct_top1(output: Any, batch: Batch) -> tuple[torch.Tensor, int]:
    """Returns how many samples have their label as the highest score.

    Args:
        output: What the model gave.
        batch: (images, labels int64 `[B]`).

    Returns:
        Number of correct samples (0-dim, on the output's device) and number of samples.
    """
    labels = batch[1]
    return (classification_logits(output).argmax(dim=1) == labels).sum(), len(labels)


TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="image-classification",
            loss=cross_entropy,
            loss_weight="samples",
            metrics={"accuracy": correct_top1},
            main_metric="accuracy",
        ),
    )
}


def task_named(name: str) -> Task:
    """Returns a task by its name.

    Args:
        name: Its name.

    Returns:
        The task.

    Raises:
        InputError: There is no such task.
    """
    if name not in TASKS:
        raise InputError(f"task {name!r} is unknown; {did_you_mean(name, TASKS)}")
    return TASKS[name]
