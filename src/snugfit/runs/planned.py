"""`snugfit train --budget`: the plan of a run, or its prediction, from the data that it will read."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np

from snugfit.planner.places import budget_for, place_for
from snugfit.planner.planner import Planner
from snugfit.planner.separable import given_check
from snugfit.runs.chosen import Chosen, chosen_by, under_measured_names
from snugfit.runs.config import RunConfig
from snugfit.runs.job import TRAITS, Job
from snugfit.runs.model_parts import without_weights
from snugfit.runs.run_device import RunDevice
from snugfit.runs.text_parts import built_by
from snugfit.simulator.batch_shapes import skeleton_of
from snugfit.simulator.estimate import estimate
from snugfit.simulator.subjects import given_subject
from snugfit.workloads.text.ragged import Ragged


def planned(config: RunConfig, job: Job, where: RunDevice) -> Chosen:
    """Returns the recipe of a run as it is planned for the widest batch, or with what is predicted for it."""
    model, batch, arguments = described(job)
    if config.budget is None:
        found = estimate(model, batch, recipe=config.chosen.recipe, device=where.planned, **arguments)
        return dataclasses.replace(config.chosen, predicted=under_measured_names(found))
    assert config.constraints is not None
    place, size = budget_for(place_for(where.planned), config.budget)
    shapes = skeleton_of(batch)
    subject = dataclasses.replace(given_subject(model, shapes, arguments), title=job.request.model)
    check = given_check(model, batch, shapes, arguments)
    with Planner(subject, place, config.constraints, check=check) as planner:
        return chosen_by(planner.at(size), tune=config.tune)


def described(job: Job) -> tuple[Any, Any, dict[str, Any]]:
    """Describes a run as `snugfit.estimate` and `snugfit.plan` take it.

    Returns the model, or what builds it without weights; the widest batch of the data; loss, optimizer and settings.
    """
    model = job.request.given.model
    skipped: tuple[str, ...] = ("weights", *TRAITS)  # traits are read off the model
    if model is None:
        skipped = (*skipped, "freeze")  # frozen when it is built
        model = partial(without_weights, job.request.model, **built_by(job.request, job.data))
    told = {name: value for name, value in job.settings.to_mapping(defaults=False).items() if name not in skipped}
    arguments = {**told, **job.is_learned(), "optimizer": job.settings.optimizer}
    return model, _widest_batch(job.data.train, job.batch_size), arguments


def _widest_batch(dataset: Any, size: int) -> Any:
    """The batch that takes most memory: of texts the longest ones together; images are all alike."""
    ids = getattr(dataset, "ids", None)
    longest = np.argsort(ids.lengths, kind="stable")[-size:] if isinstance(ids, Ragged) else range(size)
    return dataset.batch([int(index) for index in longest])
