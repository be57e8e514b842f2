"""The batch that a named model is trained on, and its task's loss: what an estimate needs in place of data."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from snugfit.errors import InputError
from snugfit.techniques.batches import first_tensor
from snugfit.workloads import hf, model_files, torchvision_tasks
from snugfit.workloads.hf_batches import HubBatch, marks_of_form
from snugfit.workloads.model_shapes import check_side, input_channels, input_size, sequence_length, vocabulary_size
from snugfit.workloads.options import BatchOptions
from snugfit.workloads.tasks import CAUSAL_LM, IMAGE_CLASSIFICATION, LANGUAGE, READ, TASKS, TEXT_TASKS, Task, task_named

OWN = Task("training_batch")
"""What a model with a batch of its own learns: the loss that it returns."""
_OTHERWISE = (
    "A model that takes something else says what: add a method training_batch(self, batch_size) whose batch its forward "
    "takes by name, and return the loss."
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingBatch:
    """One batch, and what a model learns from it."""

    batch: Any
    """Images and labels, or a dict of what the model takes."""
    task: Task
    """Loss, and how a batch is cut."""
    assumed: tuple[str, ...]
    """What neither the model nor the caller said, in words."""
    assume: Mapping[str, Any]
    """What a simulation may take for granted about the batch's values, by the names of `Assumptions`."""


def task_of(spec: str, task: str | None, among: tuple[str, ...] = tuple(TASKS)) -> str:
    """Returns the task of a named model: as asked for, else what the model is for.

    `among`: tasks of `hf:` models that come into question where none was asked for.
    """
    hub, name = spec.startswith("hf:"), spec.partition(":")[2]
    own = torchvision_tasks.task_of_builder(name) if spec.startswith("torchvision:") else IMAGE_CLASSIFICATION
    if task is not None:
        task_named(task)
    if hub:
        return hf.task_of(name, task, among)
    if task is None:
        return own
    if spec.startswith(("torchvision:", "timm:")):
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


def batch_for(model: torch.nn.Module, spec: str, task: str, **asked: Any) -> TrainingBatch:
    """Returns one batch of a task, and the task; the model says what is not given.

    The batch ((images `[B, C, S, S]`, labels `[B]`), or a dict of what the model takes, labels included) and the task.
    A model of one's own that takes something else has a method `training_batch`, and returns its loss.
    """
    options, chosen = BatchOptions(**asked), task_named(task)
    batch: Any
    own = getattr(model, "training_batch", None)
    if spec.startswith("hf:"):
        batch = HubBatch(model, chosen, options).make()
        if task == IMAGE_CLASSIFICATION:
            batch = (batch["pixel_values"], batch["labels"])
    elif spec.startswith("torchvision:") and task in torchvision_tasks.TASKS:
        chosen = torchvision_tasks.TASKS[task]
        batch = torchvision_tasks.batch_of(model, spec, task, options)
    elif task in TEXT_TASKS:
        batch = _tokens(model, task, options)
    elif callable(own):
        batch, chosen = _own(own, spec, options), OWN
    else:
        side = options.take("image_size") or input_size(model, spec)
        if side is None:
            raise InputError(f"nothing says which images {spec!r} takes. Give --image-size N. {_OTHERWISE}")
        check_side(model, spec, side)
        images = torch.rand(options.batch_size, input_channels(model), side, side, device=options.device)
        batch = (images, torch.zeros(options.batch_size, dtype=torch.long, device=options.device))
    options.check(f"{chosen.name} of {spec!r}")
    if chosen.name in READ and not spec.startswith(("hf:", "timm:", "torchvision:")):
        _check_forward(model, spec, batch)
    return TrainingBatch(batch=batch, task=chosen, assumed=tuple(options.assumed), assume=options.assume)


def _check_forward(model: torch.nn.Module, spec: str, batch: Any) -> None:
    """Raises where a person's own model cannot be called as those of its task are."""
    text = isinstance(batch, Mapping)
    try:
        inspect.signature(model.forward).bind(*([] if text else batch[:1]), **(batch if text else {}))
    except TypeError as error:
        what = f"{' and '.join(batch)} by name" if text else "images alone"
        raise InputError(f"{spec!r} is given {what}, and its forward differs: {error}. {_OTHERWISE}") from error
    except ValueError:  # a compiled function has no signature
        return


def _own(make: Callable[..., Any], spec: str, options: BatchOptions) -> Any:
    """What a model's own `training_batch` gives for as many samples, and for the sizes that it takes."""
    taken = inspect.signature(make).parameters
    sizes = {name: options.take(name) for name in ("image_size", "seq_len", "frames") if name in taken}
    given = {name: size for name, size in sizes.items() if size is not None}
    try:
        with torch.device(options.device):
            batch = make(options.batch_size, **given)
    except Exception as error:
        file = Path(inspect.getfile(make))
        raise InputError(f"training_batch of {spec!r} failed: {model_files.describe(error, file)}") from error
    if first_tensor(batch) is None:
        raise InputError(f"training_batch of {spec!r} returned no tensors. Return what forward takes, by its names.")
    return batch


def _tokens(model: torch.nn.Module, task: str, options: BatchOptions) -> dict[str, torch.Tensor]:
    """Text for a user's own model, which is called as models of transformers are."""
    length = sequence_length(model, options.take("seq_len"))
    tokens = torch.randint(0, vocabulary_size(model) or 2, (options.batch_size, length), device=options.device)
    labels = tokens.clone() if task == CAUSAL_LM else torch.zeros_like(tokens[:, 0])
    return {"input_ids": tokens, **marks_of_form(tokens, options.form), "labels": labels}
