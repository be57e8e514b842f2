"""Tasks: what a model's output is judged by. One row for each; a new task is a new row.

Models of text return their own loss. Theirs is a mean over the labels that count, and a language model shifts its labels
inside, so the first token of a sequence never counts: the weight of a microbatch is what is left.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from snugfit.errors import InputError, did_you_mean
from snugfit.techniques.microbatch.apply import IGNORED_LABEL, batch_length, first_tensor

Batch = Any


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What is trained for and what is reported."""

    name: str
    """How the task is asked for."""

    loss: Callable[[Any, Batch], torch.Tensor] | None
    """From the model's output and the batch to a 0-dim loss; None: the model returns its loss."""

    loss_weight: str | Callable[[Batch], Any]
    """How losses of microbatches combine: samples (the loss is a mean over samples), or a function from a batch to the
    number of labels that its loss is a mean over."""

    metrics: Mapping[str, Callable[[Any, Batch], tuple[torch.Tensor, int]]]
    """Name -> from output and batch to (sum of the metric over the batch, 0-dim; number of samples). Sums and numbers
    add up over batches; their quotient is the metric."""

    metrics_of_loss: Mapping[str, Callable[[float], float]] = dataclasses.field(default_factory=dict)
    """Name -> from the mean loss over all that was seen to the metric."""

    main_metric: str
    """The metric that is shown first."""

    higher_is_better: bool = True
    """Which way the main metric points."""

    split: Callable[[Batch, int], list[Batch]] | None = None
    """Function of (batch, size) giving microbatches; None: along dimension 0."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of all metrics."""
        return (*self.metrics, *self.metrics_of_loss)

    def loss_of(self, output: Any, batch: Batch) -> torch.Tensor:
        """Returns the loss of a batch.

        Args:
            output: What the model gave.
            batch: What it was given.

        Returns:
            0-dim loss.
        """
        if self.loss is not None:
            return self.loss(output, batch)
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            raise InputError(
                f"{self.name} needs a model that returns its loss when the batch has labels; this one returns a "
                f"{type(output).__name__} without one."
            )
        return loss

    def weight_of(self, batch: Batch) -> Any:
        """Returns how much the loss of a batch counts beside others.

        Args:
            batch: A batch.

        Returns:
            Samples, or labels that count: a number or a 0-dim tensor.
        """
        return self.loss_weight(batch) if callable(self.loss_weight) else batch_length(batch)


def task_of_loss(
    loss: Callable[[Any, Batch], torch.Tensor] | None, loss_weight: str | Callable[[Batch], Any] = "samples"
) -> Task:
    """Returns the task of somebody's own training: its loss is all that is known to be reported.

    Args:
        loss: As for `snugfit.prepare`.
        loss_weight: As for `snugfit.prepare`.

    Returns:
        A task without metrics.
    """

    def samples(batch: Batch) -> int:
        tensor = first_tensor(batch)
        return 1 if tensor is None else int(tensor.shape[0])

    weight = loss_weight if callable(loss_weight) else samples
    return Task(name="training", loss=loss, loss_weight=weight, metrics={}, main_metric="loss")


def shifted_labels(batch: Batch) -> torch.Tensor:
    """Returns how many labels of a batch count in a model that shifts them by one inside.

    Args:
        batch: Its `labels`, int64 `[B, T]`, are -100 where nothing is learned.

    Returns:
        0-dim, on the device of the labels: all but those of the first tokens and those that are -100.
    """
    counted: torch.Tensor = (batch["labels"][:, 1:] != IGNORED_LABEL).sum()
    return counted


def objects(batch: Batch) -> int:
    """Returns how many objects the images of a batch show; the losses of detectors are means over them.

    Args:
        batch: Its `labels` have a dictionary for each image, with `class_labels` `[N]`.
    """
    return sum(len(image["class_labels"]) for image in batch["labels"])


def split_images(batch: Batch, size: int) -> list[Batch]:
    """Cuts a batch whose labels are a list with an entry for each image.

    Args:
        batch: A dictionary; every value in it has one entry for each image.
        size: Images in a piece.

    Returns:
        The pieces.
    """
    count = len(batch["labels"])
    return [{name: value[at : at + size] for name, value in batch.items()} for at in range(0, count, size)]


def perplexity(loss: float) -> float:
    """Returns the perplexity of a mean loss over tokens in nats: e to its power, infinite beyond the range of floats."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


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
            f"the model's output is {shape}; classification needs scores of shape [batch, classes]. "
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
        batch: (images, labels int64 `[B]`), or a dict with `labels`.

    Returns:
        Number of correct samples (0-dim, on the output's device) and number of samples.
    """
    labels = batch["labels"] if isinstance(batch, Mapping) else batch[1]
    return (classification_logits(output).argmax(dim=1) == labels).sum(), len(labels)


def _own_loss(name: str, loss_weight: str | Callable[[Batch], Any] = "samples", **more: Any) -> Task:
    """A task whose models return their loss, which is all that is reported of it."""
    return Task(
        name=name,
        loss=None,
        loss_weight=loss_weight,
        metrics={},
        main_metric="loss",
        higher_is_better=False,
        **more,
    )


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
        Task(
            name="text-classification",
            loss=None,
            loss_weight="samples",
            metrics={"accuracy": correct_top1},
            main_metric="accuracy",
        ),
        Task(
            name="causal-lm",
            loss=None,
            loss_weight=shifted_labels,
            metrics={},
            metrics_of_loss={"perplexity": perplexity},
            main_metric="perplexity",
            higher_is_better=False,
        ),
        _own_loss("masked-lm", "tokens"),
        _own_loss("seq2seq-lm", "tokens"),
        _own_loss("speech-to-text", "tokens"),
        _own_loss("image-text-to-text", shifted_labels),
        _own_loss("token-classification", "tokens"),
        _own_loss("question-answering"),
        _own_loss("contrastive"),
        _own_loss("semantic-segmentation"),
        _own_loss("object-detection", objects, split=split_images),
        _own_loss("video-classification"),
        _own_loss("audio-classification"),
        _own_loss("ctc", "sum"),
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
