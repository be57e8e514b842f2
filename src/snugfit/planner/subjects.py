"""What is trained, as workers get it: a model by its name, or one that was given, with everything its recording takes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from snugfit.planner.probe import Subject
from snugfit.simulator.request import NamedModel, record_given, record_named
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
    assert workload.batch_size is not None
    skipped = ("batch_size", "weights", *_TRAITS)
    settings = {name: value for name, value in workload.to_mapping(defaults=False).items() if name not in skipped}
    return Subject(
        record=functools.partial(record_named, named, workload.batch_size, settings=settings), title=named.spec
    )


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
    record = functools.partial(record_given, model, shapes, arguments=dict(arguments))
    return Subject(record=record, title=title, built=built)
