"""Several processes: do microbatches add up to the batch? The first process tries it before anything is built.

One process finds it out in its first step (`training/microbatch_check.py`), by a few passes more. Where weights are shared
out, each pass collects them with all processes, so that such passes would have to go the same way in all of them whatever
the caller's loss does with a few samples, and the gradients of one process alone are never whole. So it is tried as
before a plan (`planner/separable.py`): with the first samples of the data, on the model that was given or on random values,
in the first process alone. Models that would take long are not tried, and the result says `microbatch_size not checked yet`.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from snugfit.errors import warn
from snugfit.planner.separable import given_check
from snugfit.recorder.materialise import without_memory
from snugfit.runs.chosen import Chosen
from snugfit.runs.job import Job
from snugfit.runs.planned import described
from snugfit.simulator.batch_shapes import skeleton_of
from snugfit.techniques.batches import batch_length
from snugfit.techniques.microbatch import splits
from snugfit.training.model_call import output_of

_PASSES = 3
"""A backward pass computes twice what a forward pass does."""


def with_microbatches_tried(by: Chosen, job: Job) -> Chosen:
    """Returns the recipe of a run with what was found out about its microbatches; warns if they change the update."""
    settings = job.settings
    if by.plan is not None or settings.coupled_samples is not None or not splits(by.recipe, settings):
        return by
    model, batch, arguments = described(job)
    shapes = skeleton_of(batch)
    flops, parameters = _cost(model, shapes, arguments.get("forward"))
    if flops is None:
        return by
    found = given_check(model, batch, shapes, arguments)(_no_worker, flops, parameters)
    if found is None:
        return by
    told = found.separation.told()
    if told:
        warn(f"microbatch_size={by.recipe.microbatch_size} changes the update of this model and loss: {told}")
    return dataclasses.replace(by, traits={**by.traits, **found.separation.traits()})


def _cost(model: Any, shapes: Any, forward: Any) -> tuple[float | None, int]:
    """The operations for a sample and the number of parameters, without computing anything."""
    counter = FlopCounterMode(display=False)
    try:
        bare = _without_values(model) if isinstance(model, nn.Module) else without_memory(lambda _: model())
        with counter, torch.no_grad():
            output_of(bare, shapes, forward)
        flops = _PASSES * counter.get_total_flops() / batch_length(shapes)
    except Exception:  # it needs values, or a batch that only the caller's own functions know
        return None, 0
    return flops, sum(weight.numel() for weight in bare.parameters())


def _without_values(model: nn.Module) -> nn.Module:
    """A copy of a model that takes no memory."""
    weights = {id(one): nn.Parameter(one.detach().to("meta")) for one in model.parameters()}
    return copy.deepcopy(model, {**weights, **{id(one): one.to("meta") for one in model.buffers()}})


def _no_worker(*_: Any) -> Any:
    """Refuses a worker: objects that were given are tried in this process."""
    raise AssertionError("a model that was given is tried in this process")
