"""Tasks: what a model is trained for, what it is judged by, and for models of transformers which class and labels it has.

One row for each; a new task is a new row. No model is known by its name here.

Models of text return their own loss. Theirs is a mean over the labels that count, and a language model shifts its labels
inside, so the first token of a sequence never counts: the weight of a microbatch is what is left.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from snugfit.errors import InputError, did_you_mean
from snugfit.techniques.batches import IGNORED_LABEL, LossWeight, first_tensor, loss_counts

CAUSAL_LM, TEXT_CLASSIFICATION = "causal-lm", "text-classification"
IMAGE_CLASSIFICATION = "image-classification"
LANGUAGE = ("seq2seq-lm", "masked-lm", CAUSAL_LM, "token-classification", "question-answering", TEXT_CLASSIFICATION)
"""Tasks whose batches are text alone."""
TEXT_TASKS = (TEXT_CLASSIFICATION, CAUSAL_LM)
"""Tasks whose text data `snugfit train` reads."""
READ = (IMAGE_CLASSIFICATION, *TEXT_TASKS)
"""Tasks whose data `snugfit train` reads."""

Batch = Any
Labels = Literal["class", "tokens", "token classes", "summary", "span", "pixels", "boxes", "pairs"]


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """What is trained for and what is reported."""

    name: str
    """How the task is asked for."""

    auto_class: str = ""
    """What stands after `AutoModelFor` in the name of the class of transformers that builds its models."""

    table: str = ""
    """What stands between `MODEL_FOR_` and `_MAPPING_NAMES` in the name of that class's table, from kinds of config to
    classes (transformers' `modeling_auto`)."""

    labels: Labels = "class"
    """Labels that models of transformers take. `class`: one number a sample; `tokens`: one for each token of the input, or
    its class; `summary`: tokens of a text of its own; `span`: where an answer starts and ends; `pixels`: one for each pixel;
    `boxes`: objects in an image; `pairs`: none, the samples of a batch are told apart from each other."""

    _: dataclasses.KW_ONLY

    loss: Callable[[Any, Batch], torch.Tensor] | None = None
    """From the model's output and the batch to a 0-dim loss; None: the model returns its loss."""

    loss_weight: LossWeight = "samples"
    """How losses of microbatches combine, as for `snugfit.prepare`: means over samples or tokens, sums, or means over what a
    function of a batch counts."""

    forward: Callable[[Any, Batch], Any] | None = None
    """Function of (model, batch); None: as for `snugfit.prepare`."""

    split: Callable[[Batch, int], list[Batch]] | None = None
    """Function of (batch, size) giving microbatches; None: along dimension 0."""

    metrics: Mapping[str, Callable[[Any, Batch], tuple[torch.Tensor, int]]] = dataclasses.field(default_factory=dict)
    """Name -> from output and batch to (sum of the metric over the batch, 0-dim; number of samples). Sums and numbers
    add up over batches; their quotient is the metric."""

    metrics_of_loss: Mapping[str, Callable[[float], float]] = dataclasses.field(default_factory=dict)
    """Name -> from the mean loss over all that was seen to the metric."""

    main_metric: str = "loss"
    """The metric that is shown first."""

    @property
    def classes(self) -> bool:
        """Whether the head tells classes apart, so that their number is an option."""
        return self.labels in ("class", "token classes", "pixels", "boxes")

    @property
    def higher_is_better(self) -> bool:
        """Which way the main metric points."""
        return self.rises(self.main_metric)

    def rises(self, metric: str) -> bool:
        """Returns whether more of a metric is better; losses, and metrics computed from them, fall."""
        return metric in self.metrics

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of `snugfit.prepare` that say what is learned."""
        told = {name: getattr(self, name) for name in ("loss", "loss_weight", "forward", "split")}
        return {**told, "coupled_samples": True} if self.coupled else told

    @property
    def coupled(self) -> bool:
        """Whether a sample's loss depends on others: a mean over the batch's objects, pairs told apart in it."""
        return self.labels in ("boxes", "pairs")

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of all metrics."""
        return (*self.metrics, *self.metrics_of_loss)

    def loss_of(self, output: Any, batch: Batch) -> torch.Tensor:
        """Returns the 0-dim loss of an output and its batch."""
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
        """Returns how much the loss of a batch counts next to others.

        Samples, or labels that count: a number or a 0-dim tensor.
        """
        if callable(self.loss_weight):
            return self.loss_weight(batch)
        if self.loss_weight == "tokens":
            return loss_counts([batch], "tokens")[0]
        tensor = first_tensor(batch)
        return 1 if tensor is None else int(tensor.shape[0])

    @property
    def loss_is_sum(self) -> bool:
        """Whether the loss is a sum over samples, and no mean."""
        return self.loss_weight == "sum"


def task_of_loss(loss: Callable[[Any, Batch], torch.Tensor] | None, loss_weight: LossWeight = "samples") -> Task:
    """Returns a task without metrics for a person's own training, of which only the loss is known."""
    return Task(name="training", loss=loss, loss_weight=loss_weight)


def shifted_labels(batch: Batch) -> torch.Tensor:
    """Returns how many labels `[B, T]` count where the model shifts them: neither first nor -100; 0-dim."""
    counted: torch.Tensor = (batch["labels"][:, 1:] != IGNORED_LABEL).sum()
    return counted


def objects(batch: Batch) -> int:
    """Returns how many objects the images of a batch show; a detector's loss is a mean over them.

    `batch`: its `labels` have a dictionary for each image, with `class_labels` `[N]`.
    """
    return sum(len(image["class_labels"]) for image in batch["labels"])


def split_images(batch: Batch, size: int) -> list[Batch]:
    """Cuts a batch whose labels are a list with an entry for each image into pieces of `size` images.

    `batch`: a dictionary; every value in it has one entry for each image.
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
    """Returns the scores `[B, classes]` in a classifier's output; `InputError` where there are none.

    `output`: `[B, classes]`, or what some models give in training: an object with `logits`, a tuple of scores and
    auxiliary scores, or a dictionary with `logits` or `out`.
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
    """Returns the 0-dim cross entropy for (images, labels int64 `[B]`), a mean over samples."""
    return torch.nn.functional.cross_entropy(classification_logits(output), batch[1])


def correct_top1(output: Any, batch: Batch) -> tuple[torch.Tensor, int]:
    """Returns how many samples have their label as the highest score.

    `batch`: (images, labels int64 `[B]`), or a dict with `labels`.
    Number of correct samples (0-dim, on the output's device) and number of samples.
    """
    labels = batch["labels"] if isinstance(batch, Mapping) else batch[1]
    return (classification_logits(output).argmax(dim=1) == labels).sum(), len(labels)


_ACCURACY: dict[str, Any] = {"metrics": {"accuracy": correct_top1}, "main_metric": "accuracy"}
_PERPLEXITY: dict[str, Any] = {"metrics_of_loss": {"perplexity": perplexity}, "main_metric": "perplexity"}

_ROWS = (
    Task("seq2seq-lm", "Seq2SeqLM", "SEQ_TO_SEQ_CAUSAL_LM", "summary", loss_weight="tokens"),
    Task("speech-to-text", "SpeechSeq2Seq", "SPEECH_SEQ_2_SEQ", "summary", loss_weight="tokens"),
    Task("contrastive", "ZeroShotImageClassification", "ZERO_SHOT_IMAGE_CLASSIFICATION", "pairs"),
    Task("image-text-to-text", "ImageTextToText", "IMAGE_TEXT_TO_TEXT", "tokens", loss_weight=shifted_labels),
    Task("masked-lm", "MaskedLM", "MASKED_LM", "tokens", loss_weight="tokens"),
    Task(CAUSAL_LM, "CausalLM", "CAUSAL_LM", "tokens", loss_weight=shifted_labels, **_PERPLEXITY),
    Task(IMAGE_CLASSIFICATION, "ImageClassification", "IMAGE_CLASSIFICATION", loss=cross_entropy, **_ACCURACY),
    Task("object-detection", "ObjectDetection", "OBJECT_DETECTION", "boxes", loss_weight=objects, split=split_images),
    Task("semantic-segmentation", "SemanticSegmentation", "SEMANTIC_SEGMENTATION", "pixels"),
    Task("video-classification", "VideoClassification", "VIDEO_CLASSIFICATION"),
    Task("ctc", "CTC", "CTC", "summary", loss_weight="sum"),
    Task("audio-classification", "AudioClassification", "AUDIO_CLASSIFICATION"),
    Task("token-classification", "TokenClassification", "TOKEN_CLASSIFICATION", "token classes", loss_weight="tokens"),
    Task("question-answering", "QuestionAnswering", "QUESTION_ANSWERING", "span"),
    Task(TEXT_CLASSIFICATION, "SequenceClassification", "SEQUENCE_CLASSIFICATION", **_ACCURACY),
)

TASKS: Mapping[str, Task] = {task.name: task for task in _ROWS}
"""The tasks. A config of transformers that names no class is taken for the first task that its kind has a class for: what a
kind was made for (translation, contrastive pairs, filling in words) stands before the heads that almost every kind has."""


def task_named(name: str) -> Task:
    """Returns a task by its name; `InputError` where there is none."""
    if name not in TASKS:
        known = dict.fromkeys((*READ, *TASKS))  # those that are trained from data come first
        raise InputError(f"task {name!r} is unknown; {did_you_mean(name, known)}")
    return TASKS[name]
