"""What is trained, as workers get it: a model by its name, or one that was given, with everything its recording takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from snugfit.planner.probe import Subject
from snugfit.recipe import Recipe
from snugfit.recording.recording import Recording
from snugfit.simulator.request import Kind, NamedModel, record_given, record_named
from snugfit.workload import Workload

_TRAITS = ("batch_norm", "dropout")


def named_subject(named: NamedModel, workload: Workload) -> Subject:
    """Returns a model by its name.

    Args:
        named: The model and the shape of its batch.
        workload: Its `batch_size` must be given.

    Returns:
        The subject.
    """
    skipped = ("batch_size", "weights", *_TRAITS)
    settings = {name: value for name, value in workload.to_mapping(defaults=False).items() if name not in skipped}
    return Subject(record=_record_named, arguments=(named, workload.batch_size, settings), title=named.spec)


def given_subject(model: Any, shapes: Any, arguments: Mapping[str, Any]) -> Subject:
    """Returns a model that was given.

    Args:
        model: A module, or a function without arguments that builds one.
        shapes: The batch without memory (`batch_shapes.skeleton_of`).
        arguments: The other arguments of `snugfit.prepare`.

    Returns:
        The subject.
    """
    title = getattr(model, "__name__", None) or type(model).__name__
    import torch

    built = isinstance(model, torch.nn.Module)
    return Subject(record=_record_given, arguments=(model, shapes, dict(arguments)), title=title, built=built)


def _record_named(arguments: tuple[Any, ...], recipe: Recipe, kind: Kind) -> Recording:
    named, batch_size, settings = arguments
    return record_named(named, batch_size, recipe, kind, settings)


def _record_given(arguments: tuple[Any, ...], recipe: Recipe, kind: Kind) -> Recording:
    model, shapes, settings = arguments
    return record_given(model, shapes, recipe, kind, settings)
