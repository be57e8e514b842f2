"""`snugfit train --budget`: the plan of a run, or its prediction, from the data that it will read."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np

from snugfit.planner.constraints import Constraints
from snugfit.planner.places import budget_for, place_for
from snugfit.planner.plan_result import Plan
from snugfit.planner.planner import Planner
from snugfit.planner.separable import given_check
from snugfit.recipe import Recipe
from snugfit.runs.chosen import under_measured_names
from snugfit.runs.model_parts import without_weights
from snugfit.runs.parts import TRAITS, what_is_learned
from snugfit.runs.place import RunPlace
from snugfit.runs.request import Request
from snugfit.runs.text_parts import built_by
from snugfit.simulator.batch_shapes import skeleton_of
from snugfit.simulator.estimate import estimate
from snugfit.simulator.subjects import given_subject
from snugfit.workloads.data import Splits
from snugfit.workloads.tasks import Task
from snugfit.workloads.text.ragged import Ragged


def plan_training(
    request: Request, data: Splits, task: Task, where: RunPlace, budget: str | int, constraints: Constraints
) -> Plan:
    """Plans a run for its widest batch."""
    place, size = budget_for(place_for(where.planned), budget)
    model, batch, arguments = described(request, data, task)
    shapes = skeleton_of(batch)
    subject = dataclasses.replace(given_subject(model, shapes, arguments), title=request.model)
    check = given_check(model, batch, shapes, arguments)
    with Planner(subject, place, constraints, check=check) as planner:
        return planner.at(size)


def described(request: Request, data: Splits, task: Task) -> tuple[Any, Any, dict[str, Any]]:
    """Describes a run as `snugfit.estimate` and `snugfit.plan` take it.

    Returns the model, or what builds it without weights; the widest batch of the data; loss, optimizer and settings.
    """
    settings, given = request.settings, request.given
    assert settings.batch_size is not None
    model: Any = None if given is None else given.model
    skipped: tuple[str, ...] = ("weights", *TRAITS)  # traits are read off the model
    if model is None:
        skipped = (*skipped, "freeze")  # frozen when it is built
        model = partial(without_weights, request.model, **built_by(request, data))
    told = {name: value for name, value in settings.to_mapping(defaults=False).items() if name not in skipped}
    arguments = {**told, **what_is_learned(request, task), "optimizer": settings.optimizer}
    return model, widest_batch(data.train, settings.batch_size), arguments


def predicted_for(request: Request, data: Splits, task: Task, where: RunPlace, recipe: Recipe) -> dict[str, Any]:
    """Predicts a run by a given recipe, by the names of what is measured."""
    model, batch, arguments = described(request, data, task)
    found = estimate(model, batch, recipe=recipe, device=where.planned, **arguments)
    return under_measured_names(found)


def widest_batch(dataset: Any, size: int) -> Any:
    """Returns the batch that takes most memory: of texts the longest ones together; images are all alike."""
    ids = getattr(dataset, "ids", None)
    longest = np.argsort(ids.lengths, kind="stable")[-size:] if isinstance(ids, Ragged) else range(size)
    return dataset.batch([int(index) for index in longest])
