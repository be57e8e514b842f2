"""From a request to its parts: device, data, model, trainer."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from snugfit.errors import InputError
from snugfit.phases import phase
from snugfit.runs import text_parts
from snugfit.runs.alike import check_alike
from snugfit.runs.chosen import Chosen
from snugfit.runs.given import opened
from snugfit.runs.joining import processes_here
from snugfit.runs.model_parts import check_sample, hub_name, skeleton, starting_weights
from snugfit.runs.request import Request
from snugfit.techniques import each_builds
from snugfit.techniques.true_precision.apply import held_in
from snugfit.training.prepare import prepare
from snugfit.training.random_state import capture, restore, seed_everything
from snugfit.training.step import Trainer
from snugfit.workloads.data import FORMS, Splits, open_data
from snugfit.workloads.hf import is_kind
from snugfit.workloads.hf_files import fetch
from snugfit.workloads.model_batches import task_of
from snugfit.workloads.model_shapes import input_channels, input_size, output_classes, vocabulary_size
from snugfit.workloads.models import build_model, parse_model_args
from snugfit.workloads.options import refuse
from snugfit.workloads.tasks import IMAGE_CLASSIFICATION, READ, TEXT_TASKS, Task, task_named
from snugfit.workloads.text import TASK_OF_DATA
from snugfit.workloads.text.packing import check_borders

TRAITS = ("batch_norm", "dropout", "half_weights")
"""Fields of the workload that are read off the model."""
_TEXT_OPTIONS = ("seq_len", "packing", "text_column", "label_column", "prompt_column")
_IMAGE_OPTIONS = ("image_size", "strict")


def with_task(request: Request, *, download: bool) -> tuple[Request, Task]:
    """Returns the request with its task (as asked for, else what data or model are for), and the task.

    `download`: whether a `hf:` model that is missing may be fetched.
    """
    given = request.given
    if given is not None and (given.data is not None or given.loss is not None):
        task = given.task(request.task)
        return dataclasses.replace(request, task=task.name), task
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
    return dataclasses.replace(request, task=found), task_named(found)


def _readable(data: str) -> tuple[str, ...]:
    """The tasks that a kind of data can be for."""
    if data == "random":
        return READ
    images = data.partition(":")[0] in {form.partition(":")[0] for form in FORMS}
    return (IMAGE_CLASSIFICATION,) if images else TEXT_TASKS


def open_matching_data(request: Request, task: Task, *, download: bool) -> Splits:
    """Opens the data in the shape that the model takes, in three parts; `InputError` if they do not match."""
    given = {name: getattr(request, name) for name in (*_TEXT_OPTIONS, *_IMAGE_OPTIONS, "samples")}
    if request.given is not None and request.given.data is not None:
        refuse(given, (), "datasets that are given")
        return opened(request.given.data, request.given.collate)
    model_args = parse_model_args(request.model_args)
    model = skeleton(request)
    if request.task in TEXT_TASKS:
        refuse(given, (*_TEXT_OPTIONS, "samples"), str(request.task))
        data = text_parts.open_matching_text(request, model, download=download)
    else:
        refuse(given, (*_IMAGE_OPTIONS, "samples"), str(request.task))
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


def build_trainer(
    chosen: Chosen,
    request: Request,
    data: Splits,
    device: torch.device,
    task: Task,
    total_steps: int,
) -> Trainer:
    """Builds the model, seeded, and prepares it.

    `data`: its number of classes decides the model's head, its tokenizer the ids that the model knows as special.
    `total_steps`: updates of the whole run; the schedule ends with them.
    """
    settings, recipe, given = request.settings, chosen.recipe, request.given
    built_by = text_parts.built_by(request, data)
    seed_everything(settings.seed)
    processes = processes_here()
    apart = processes.count == 1 or each_builds(recipe)
    model: Any = None if given is None else given.model
    # Whether borders between packed samples are seen takes values, so nothing comes late then.
    late = recipe.quantize != "none" and not request.packing
    with phase("build"):
        model = model or build_model(
            request.model,
            **built_by,
            weights=starting_weights(request),
            init=recipe.init,
            device=device if recipe.quantize == "none" else torch.device("cpu"),  # packed layers go to the device alone
            dtype=held_in(recipe),
            processes=1 if apart else processes.count,
            number=0 if apart else processes.number,
            late=late,
        )
        if request.packing and (apart or processes.first):
            check_borders(model, vocabulary=vocabulary_size(model) or 2, name=request.model)
    if isinstance(model, torch.nn.Module):
        check_alike(processes, model, data, request)
    told = {**settings.to_mapping(), "max_steps": total_steps}
    for name in TRAITS:  # prepare reads the traits off the model
        del told[name]
    trainer = prepare(model, chosen, device=device, tune=chosen.to_be_tuned, **what_is_learned(request, task), **told)
    if processes.count > 1:  # who has built nothing has drawn nothing
        restore(processes.from_first(capture))
    return trainer


def what_is_learned(request: Request, task: Task) -> dict[str, Any]:
    """Returns the arguments of `snugfit.prepare` that say what is learned."""
    if request.given is not None:
        return dict(request.given.for_prepare(task))
    return task.arguments()
