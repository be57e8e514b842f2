"""What is trained, as workers get it: a model by its name, or one that was given, with everything its recording takes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from snugfit.errors import InputError
from snugfit.fake_device.personality import Personality
from snugfit.recipe import Recipe
from snugfit.recording.recording import Recording
from snugfit.simulator.request import NamedModel, record_named
from snugfit.workload import Workload

BATCH_SIZE = 64
"""Samples of an update of a model by its name, where nobody says."""
_FOUND_OUT = ("batch_size", "weights", "batch_norm", "dropout", "half_weights")
"""Fields of a workload that the recording itself is told or finds out."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What is trained: a function that records it by a recipe on a kind of device, and its arguments."""

    record: Callable[..., Recording]
    """Called in a worker with recipe and personality; for a model that is trained by a recipe also with `whole` and
    `most_weight_bytes`."""
    title: str
    """The model's name."""
    workload: Workload
    """What is learned, as far as that is known before a simulation: its batch, and the GPUs."""
    built: bool = False
    """Whether the model stands already, so that no plan can say where it is built."""
    by_recipe: bool = True
    """Whether it is trained by a recipe, and not by a step of one's own."""
    options: tuple[str, ...] = ()
    """Of a model by name: what is typed behind the name for its batch to have this shape."""


def named_subject(named: NamedModel, workload: Workload | None = None) -> Subject:
    """Returns a model by name; workload None: AdamW, on batches of `BATCH_SIZE`."""
    workload = workload or Workload()
    settings = {name: value for name, value in workload.to_mapping(defaults=False).items() if name not in _FOUND_OUT}
    record = functools.partial(record_named, named, workload.batch_size or BATCH_SIZE, settings)
    told = workload.replace(batch_size=workload.batch_size or BATCH_SIZE)
    return Subject(record=record, title=named.spec, workload=told, options=named.options)


def given_subject(model: Any, shapes: Any, arguments: Mapping[str, Any]) -> Subject:
    """Returns a given model (or function that builds one) with `shapes` from `skeleton_of`."""
    import torch

    from snugfit.simulator.batches import longest
    from snugfit.simulator.given_batches import batches_of
    from snugfit.simulator.given_training import record_given

    record = functools.partial(record_given, model, shapes, dict(arguments))
    told = {name: arguments[name] for name in ("batch_size", "gpus", "nodes") if arguments.get(name) is not None}
    samples = longest(batches_of(shapes))
    if samples is not None and arguments.get("split") is None and told.setdefault("batch_size", samples) != samples:
        raise InputError(
            f"batch_size is {told['batch_size']}, and the batch that was given has {samples} samples. Give a batch of the "
            "size that is meant (shapes will do), and leave batch_size out."
        )
    return Subject(
        record=record,
        title=title_of(model),
        workload=Workload.from_mapping(told),
        built=isinstance(model, torch.nn.Module),
    )


def step_subject(
    step: Callable[[Any, Any, Any], Any],
    model: Any,
    optimizer: Any,
    shapes: Any,
    settings: Mapping[str, Any],
    *,
    steps: int | None,
    on_host: bool,
) -> Subject:
    """Returns a model that a hand-written step trains.

    `on_host`: whether the step finds its batch on the host.
    `steps`: how often it is called; None: as for `snugfit.estimate`.
    """
    import torch

    from snugfit.simulator.own_step import record_step

    record = functools.partial(
        record_step, step, model, optimizer, shapes, dict(settings), on_host=on_host, steps=steps
    )
    return Subject(
        record=functools.partial(_recorded, record),
        title=title_of(model),
        workload=Workload(),
        built=isinstance(model, torch.nn.Module),
        by_recipe=False,
    )


def _recorded(record: Callable[..., Any], recipe: Recipe, personality: Personality, **how: Any) -> Any:
    return record(personality, recipe=recipe, **how)


def title_of(model: Any) -> str:
    """Returns what a given model is called; `InputError` where it is none."""
    if not callable(model):
        raise InputError(f"model is a {type(model).__name__}; give a torch.nn.Module or a function that builds one.")
    return getattr(model, "__name__", None) or type(model).__name__
