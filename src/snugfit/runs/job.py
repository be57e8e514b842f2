"""What a run trains, made of what it was asked for: the task, and the data in the shape that the model takes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from snugfit.errors import InputError
from snugfit.runs import text_parts
from snugfit.runs.best import check_best
from snugfit.runs.given import opened, task_of_given
from snugfit.runs.model_parts import check_sample, hub_name, whole_model
from snugfit.runs.request import Request
from snugfit.workload import Workload
from snugfit.workloads.data import FORMS, Splits, open_data
from snugfit.workloads.hf import is_kind
from snugfit.workloads.hf_files import fetch
from snugfit.workloads.model_batches import task_of
from snugfit.workloads.model_shapes import input_channels, input_size, output_classes
from snugfit.workloads.models import parse_model_args
from snugfit.workloads.options import refuse
from snugfit.workloads.tasks import IMAGE_CLASSIFICATION, READ, TEXT_TASKS, Task, task_named
from snugfit.workloads.text import TASK_OF_DATA

TRAITS = ("batch_norm", "dropout", "half_weights")
"""Fields of the workload that are read off the model."""
_TEXT_OPTIONS = ("seq_len", "packing", "text_column", "label_column", "prompt_column")
_IMAGE_OPTIONS = ("image_size", "strict")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What a run trains."""

    request: Request
    """What was asked for, with the name of its task."""
    task: Task
    """Loss and metrics."""
    data: Splits
    """Training, validation and test samples."""

    @property
    def settings(self) -> Workload:
        """The training settings."""
        return self.request.settings

    @property
    def batch_size(self) -> int:
        """Samples of an update."""
        assert self.settings.batch_size is not None
        return self.settings.batch_size

    @property
    def steps(self) -> int:
        """Updates of the whole run."""
        return steps_of_run(self.settings, len(self.data.train))

    def is_learned(self) -> dict[str, Any]:
        """Returns the arguments of `snugfit.prepare` that say what is learned."""
        given, task = self.request.given, self.task
        own = given.loss is not None or task.name == "training"
        return {
            "loss": given.loss if own else task.loss,
            "loss_weight": given.loss_weight if own else task.loss_weight,
            "forward": given.forward,
            "split": given.split or task.split,
        }

    def check(self) -> None:
        """Raises `InputError` for settings that the data is too little for."""
        check_best(self.settings, self.task, self.data)
        samples = len(self.data.train)
        if self.batch_size > samples:
            raise InputError(
                f"batch_size {self.batch_size} is larger than the {samples} training samples of {self.data.name}; give at "
                f"most {samples}."
            )


def steps_of_run(workload: Workload, train_samples: int) -> int:
    """Returns how many updates a run takes.

    `workload`: `max_steps` decides where it is given, whatever the epochs; else `epochs`.
    The last batch of an epoch may be smaller and counts as one.
    """
    assert workload.batch_size is not None
    if workload.max_steps is not None:
        return workload.max_steps
    return workload.epochs * math.ceil(train_samples / workload.batch_size)


def open_job(request: Request, *, download: bool) -> Job:
    """Finds the task (as asked for, else what data or model are for) and opens the data; `InputError` if they do not match.

    `download`: whether data, and a `hf:` model, that is missing may be fetched.
    """
    task = _task(request, download=download)
    request = dataclasses.replace(request, task=task.name)
    return Job(request=request, task=task, data=_matching_data(request, task, download=download))


def _task(request: Request, *, download: bool) -> Task:
    if request.given.data is not None or request.given.loss is not None:
        return task_of_given(request.given, request.task)
    name = hub_name(request)
    if name is not None:
        if download:
            fetch(name)
        if is_kind(name):
            raise InputError(
                f"model 'hf:{name}' is a kind of model without weights and tokenizer, which `snugfit estimate` and "
                "`snugfit plan` take. To train give a directory with a config.json, or a model of the hub with --download."
            )
    wanted = request.task or TASK_OF_DATA.get(request.data.partition(":")[0])
    found = task_of(request.model, wanted, _readable(request.data))
    if found not in READ:
        raise InputError(
            f"task {found!r} can be estimated and planned, but `snugfit train` reads data for {', '.join(READ)} only. "
            "Train it from Python: snugfit.prepare(model, plan) and trainer.step(batch) in your own loop."
        )
    return task_named(found)


def _readable(data: str) -> tuple[str, ...]:
    """The tasks that a kind of data can be for."""
    if data == "random":
        return READ
    images = data.partition(":")[0] in {form.partition(":")[0] for form in FORMS}
    return (IMAGE_CLASSIFICATION,) if images else TEXT_TASKS


def _matching_data(request: Request, task: Task, *, download: bool) -> Splits:
    typed = {name: getattr(request, name) for name in (*_TEXT_OPTIONS, *_IMAGE_OPTIONS, "samples")}
    if request.given.data is not None:
        refuse(typed, (), "datasets that are given")
        return opened(request.given.data, request.given.collate)
    model_args = parse_model_args(request.model_args)
    model = whole_model(request)
    if task.name in TEXT_TASKS:
        refuse(typed, (*_TEXT_OPTIONS, "samples"), task.name)
        data = text_parts.open_matching_text(request, model, download=download)
    else:
        refuse(typed, (*_IMAGE_OPTIONS, "samples"), task.name)
        # Labels of random data run over the classes that the model has; other data brings its own, and the head follows.
        classes = output_classes(model) if request.data == "random" else model_args.get("num_classes")
        data = open_data(
            request.data,
            image_size=request.image_size or input_size(model, request.model),
            channels=input_channels(model),
            num_classes=classes,
            seed=request.settings.seed,
            download=download,
            samples=request.samples,
            strict=request.strict,
        )
    check_sample(request, data, task, model_args)
    return data
