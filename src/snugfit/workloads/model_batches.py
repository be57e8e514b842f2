"""The batch that a named model is trained on, and its task's loss: what an estimate needs in place of data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from snugfit.errors import InputError, did_you_mean
from snugfit.workloads import hf, torchvision_tasks
from snugfit.workloads.hf_batches import Form, HubBatch
from snugfit.workloads.hf_tasks import CAUSAL_LM, IMAGE_CLASSIFICATION, LANGUAGE, TEXT_CLASSIFICATION
from snugfit.workloads.model_shapes import input_channels, input_size, sequence_length, vocabulary_size
from snugfit.workloads.tasks import TASKS, cross_entropy, task_named

TEXT_TASKS = (CAUSAL_LM, TEXT_CLASSIFICATION)
"""Tasks whose text data `snugfit train` reads."""
READ = (IMAGE_CLASSIFICATION, *TEXT_TASKS)
"""Tasks whose data `snugfit train` reads."""

MOST_NUMBERS = 2**48
"""Pixels or tokens of a batch; with channels and bytes, more would not fit the integers that count them."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingBatch:
    """One batch, and how a model is trained on it; all but `assumed` are arguments of `snugfit.prepare` by these names."""

    batch: Any
    """Images and labels, or a dict of what the model takes."""
    loss: Callable[[Any, Any], torch.Tensor] | None
    """Function of (output, batch); None where the model returns its loss."""
    loss_weight: str | Callable[[Any], Any]
    """How losses of microbatches combine."""
    forward: Callable[[Any, Any], Any] | None = None
    """Function of (model, batch); None: as for `snugfit.prepare`."""
    split: Callable[[Any, int], list[Any]] | None = None
    """Function of (batch, size) giving microbatches; None: along dimension 0."""
    assumed: tuple[str, ...] = ()
    """What neither the model nor the caller said, in words."""
    assume: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What a simulation may take for granted about the batch's values, by the names of `Assumptions`."""

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of `snugfit.prepare` that are not the model's, the recipe's or the settings'."""
        return {name: getattr(self, name) for name in ("loss", "loss_weight", "forward", "split")}


def task_of(spec: str, task: str | None, among: tuple[str, ...] = hf.TASKS) -> str:
    """Returns the task of a named model.

    Args:
        spec: How the model is named.
        task: What was asked for; None: what the model is for.
        among: Tasks of `hf:` models that come into question where none was asked for.

    Returns:
        The task's name.

    Raises:
        InputError: There is no such task, or not for this model.
    """
    hub, name = spec.startswith("hf:"), spec.partition(":")[2]
    own = torchvision_tasks.task_of_builder(name) if spec.startswith("torchvision:") else IMAGE_CLASSIFICATION
    if task is None:
        return hf.task_of_config(name, among) if hub else own
    if task not in TASKS:
        raise InputError(f"task {task!r} is unknown; {did_you_mean(task, TASKS)}")
    if hub:
        hf.check_task(name, task)
    elif spec.startswith(("torchvision:", "timm:")):
        if task == own:
            return task
        if task in LANGUAGE:
            raise InputError(f"task {task!r} is for models of text, and {spec!r} takes images. Leave --task out.")
        raise InputError(f"task {task!r} is not that of {spec!r}, which is for {own}. Leave --task out.")
    elif task not in READ:
        raise InputError(
            f"task {task!r} is for hf: models; for a model of your own give {IMAGE_CLASSIFICATION} or "
            f"{' or '.join(TEXT_TASKS)}, or use snugfit.estimate(model, batch) in Python."
        )
    return task


def batch_for(
    model: torch.nn.Module,
    spec: str,
    task: str,
    *,
    batch_size: int,
    image_size: int | None = None,
    seq_len: int | None = None,
    frames: int | None = None,
    form: Form = "full",
    device: str = "meta",
) -> TrainingBatch:
    """Returns one batch of a task, and how a model is trained on it.

    Args:
        model: The model; it says what is not given.
        spec: How it was named.
        task: The task's name.
        batch_size: Samples, B.
        image_size: Side of the images, S; None: the model's own.
        seq_len: Tokens of a sequence, T; None: 512, or fewer where the model takes fewer.
        frames: Frames of a clip, for models of video; None: the model's own.
        form: Text that fills every sequence; text that is padded, with a mask; or short samples packed, with positions.
        device: Where the batch is made: `meta` without values, elsewhere with random ones.

    Returns:
        The batch ((images `[B, C, S, S]`, labels `[B]`), or a dict of what the model takes, labels included) and the task.

    Raises:
        InputError: The shape is missing, or does not fit the task.
    """
    chosen = task_named(task)
    given = {"--batch-size": batch_size, "--image-size": image_size, "--seq-len": seq_len, "--frames": frames}
    if batch_size * (image_size or 1) ** 2 * (seq_len or 1) * (frames or 1) > MOST_NUMBERS:
        sizes = ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)
        raise InputError(f"{sizes}: such a batch has more numbers than any machine holds. Give smaller ones.")
    if spec.startswith("hf:"):
        made = HubBatch(
            model, task, batch_size=batch_size, image_size=image_size, seq_len=seq_len, frames=frames, form=form,
            device=device,
        )  # fmt: skip
        batch: Any = made.make()
        if task == IMAGE_CLASSIFICATION:
            batch = (batch["pixel_values"], batch["labels"])
        return TrainingBatch(
            batch=batch,
            loss=chosen.loss,
            loss_weight=chosen.loss_weight,
            split=chosen.split,
            assumed=tuple(made.assumed),
            assume=made.assume,
        )
    if spec.startswith("torchvision:") and task != IMAGE_CLASSIFICATION:
        if seq_len is not None:
            raise InputError(f"--seq-len has no meaning for {task}; give --image-size.")
        return _torchvision(model, spec, task, batch_size, image_size, frames, device)
    if frames is not None:
        raise InputError(f"--frames has no meaning for {task} of {spec!r}. Leave it out.")
    if task in TEXT_TASKS:
        if image_size is not None:
            raise InputError(f"--image-size has no meaning for {task}; give --seq-len.")
        text = _tokens(model, task, batch_size, sequence_length(model, seq_len), form, device)
        return TrainingBatch(batch=text, loss=chosen.loss, loss_weight=chosen.loss_weight)
    if seq_len is not None:
        raise InputError(f"--seq-len has no meaning for {task}; give --image-size.")
    side = image_size or input_size(model, spec)
    if side is None:
        raise InputError(f"nothing says which images {spec!r} takes. Give --image-size N.")
    images = torch.rand(batch_size, input_channels(model), side, side, device=device)
    labels = torch.zeros(batch_size, dtype=torch.long, device=device)
    return TrainingBatch(batch=(images, labels), loss=chosen.loss, loss_weight=chosen.loss_weight)


def _torchvision(
    model: torch.nn.Module,
    spec: str,
    task: str,
    batch_size: int,
    image_size: int | None,
    frames: int | None,
    device: str,
) -> TrainingBatch:
    """Batches of torchvision's models for segments, boxes and video, and the losses of its training scripts."""
    if task == torchvision_tasks.VIDEO:
        clips, assumed = torchvision_tasks.video_batch(spec, batch_size, image_size, frames, device)
        return TrainingBatch(batch=clips, loss=cross_entropy, loss_weight="samples", assumed=assumed)
    if frames is not None:
        raise InputError(f"--frames has no meaning for {task} of {spec!r}. Leave it out.")
    if task == torchvision_tasks.DETECTION:
        found, assumed = torchvision_tasks.detection_batch(model, batch_size, image_size, device)
        return TrainingBatch(
            batch=found,
            loss=None,
            loss_weight="samples",
            forward=torchvision_tasks.detector_loss,
            split=torchvision_tasks.split_detection,
            assumed=assumed,
            assume=torchvision_tasks.ASSUME,
        )
    pixels = torchvision_tasks.segmentation_batch(spec, model, batch_size, image_size, device)
    return TrainingBatch(batch=pixels, loss=torchvision_tasks.segmentation_loss, loss_weight="samples")


def _tokens(
    model: torch.nn.Module, task: str, batch_size: int, length: int, form: str, device: str
) -> dict[str, torch.Tensor]:
    """Text for a model of the user's own, which is called as models of transformers are."""
    words = vocabulary_size(model) or 2
    tokens = torch.randint(0, words, (batch_size, length), device=device)
    batch = {"input_ids": tokens}
    if form != "full":
        batch["attention_mask" if form == "padded" else "position_ids"] = torch.ones_like(tokens)
    batch["labels"] = tokens.clone() if task == CAUSAL_LM else torch.zeros_like(tokens[:, 0])
    return batch
