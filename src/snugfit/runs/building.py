"""The trainer of a run: its model, built as the recipe says, seeded and prepared, the same one in all processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from snugfit.errors import InputError
from snugfit.phases import phase
from snugfit.runs.chosen import Chosen
from snugfit.runs.job import TRAITS, Job
from snugfit.runs.model_parts import starting_weights
from snugfit.runs.processes import processes_here
from snugfit.runs.text_parts import built_by
from snugfit.techniques import each_builds
from snugfit.techniques.batches import first_tensor
from snugfit.techniques.true_precision.apply import held_in
from snugfit.training.prepare import prepare
from snugfit.training.random_state import capture, restore, seed_everything
from snugfit.training.trainer import Trainer
from snugfit.workloads.model_shapes import vocabulary_size
from snugfit.workloads.models import build_model
from snugfit.workloads.text.packing import check_borders

_LOOKED_AT = 64
"""First values of a parameter that are compared: other seeds and other files differ there."""


def build_trainer(chosen: Chosen, job: Job, device: torch.device) -> Trainer:
    """Builds the model, seeded, and prepares it."""
    request, recipe = job.request, chosen.recipe
    arguments = built_by(request, job.data)
    seed_everything(job.settings.seed)
    processes = processes_here()
    apart = processes.count == 1 or each_builds(recipe)
    model = request.given.model
    # Whether borders between packed samples are seen takes values, so nothing comes late then.
    late = recipe.quantize != "none" and not request.packing
    with phase("build"):
        model = model or build_model(
            request.model,
            **arguments,
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
    if isinstance(model, nn.Module):
        _check_alike(model, job)
    told: dict[str, Any] = {**job.settings.to_mapping(), "max_steps": job.steps}
    for name in TRAITS:  # prepare reads the traits off the model
        del told[name]
    trainer = prepare(model, chosen, device=device, tune=chosen.to_be_tuned, **job.is_learned(), **told)
    if processes.count > 1:  # who has built nothing has drawn nothing
        restore(processes.from_first(capture))
    return trainer


def _check_alike(model: nn.Module, job: Job) -> None:
    """Compares what all processes are about to train, before training; any difference is an `InputError` in all."""
    processes, data = processes_here(), job.data
    if processes.count == 1:
        return
    sample = first_tensor(data.train.batch([0])) if hasattr(data.train, "batch") else None
    seen = {
        "model (names and shapes of its parameters)": [
            (name, tuple(weight.shape), str(weight.dtype)) for name, weight in model.named_parameters()
        ],
        "data (samples of its parts)": [
            0 if part is None else len(part) for part in (data.train, data.validation, data.test)
        ],
        "data (its first sample)": None if sample is None else sample.flatten()[:_LOOKED_AT].tolist(),
        "training settings": job.settings.to_mapping(),
        "starting weights": {
            name: weight.detach().flatten()[:_LOOKED_AT].cpu().tolist()
            for name, weight in model.named_parameters()
            if not weight.is_meta  # those of the first process come later
        },
    }
    every: list[dict[str, Any]] = processes.all({what: repr(value) for what, value in seen.items()})
    for what in seen:
        others = [str(number) for number, one in enumerate(every) if one[what] not in (every[0][what], repr({}))]
        if others:
            raise InputError(
                f"process {', '.join(others)} of {processes.count} has another {what.partition(' (')[0]} than the first"
                f"{' (' + what.partition(' (')[2] if '(' in what else ''}. Give all of them the same command, the same "
                "files and the same seed."
            )
