"""A model of the zoo: what is trained for real and predicted from the same description."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from snugfit.simulator.request import NamedModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """A model, by its name where `snugfit estimate` takes one, and what it is trained on."""

    family: str
    """Part of the zoo it belongs to."""
    name: str
    """Its name there, unique in the zoo."""
    build: Callable[[], torch.nn.Module]
    """Builds the model, with random values."""
    batch: Callable[[torch.nn.Module], Any]
    """Makes one batch with values, on cpu."""
    arguments: Mapping[str, Any]
    """The other arguments of `snugfit.prepare`: loss, forward, split, loss_weight."""
    named: NamedModel | None = None
    """How the command line names it; None: user code, which is given to the Python functions."""
    batch_size: int = 2
    """Samples of a batch."""
    optimizer: Any = "adamw"
    """A name, or a function from parameters to an optimizer."""
    again: Callable[[], Subject] | None = None
    """Makes it anew, with what its loss or forward captured; None: they captured nothing."""
    assume: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Assumptions that the simulation must be told, for code that selects by values."""


def library(
    family: str,
    spec: str,
    *,
    name: str | None = None,
    batch_size: int = 2,
    task: str | None = None,
    model_args: tuple[str, ...] = (),
    **shape: int,
) -> Subject:
    """Returns a model that the command line knows by its name.

    Args:
        family: Part of the zoo.
        spec: As for `snugfit estimate`.
        name: Its name in the zoo; None: the spec.
        batch_size: Samples of a batch.
        task: Its task; None: what the model is for.
        model_args: Arguments of its constructor, as typed.
        **shape: image_size, seq_len, frames.
    """
    from snugfit.workloads.model_batches import batch_for, task_of
    from snugfit.workloads.models import build_model, parse_model_args

    chosen = task_of(spec, task)
    arguments = parse_model_args(model_args)

    def build(init: str = "host", device: str = "cpu") -> torch.nn.Module:
        return build_model(spec, model_args=arguments, task=chosen, init=init, device=device)

    def made(model: torch.nn.Module, device: str) -> Any:
        return batch_for(model, spec, chosen, batch_size=batch_size, device=device, **shape)

    return Subject(
        family=family,
        name=name or spec,
        build=build,
        batch=lambda model: made(model, "cpu").batch,
        arguments=made(build(), "meta").task.arguments(),
        named=NamedModel(spec=spec, model_args=model_args, task=task, **shape),
        batch_size=batch_size,
    )


def hub(kind: str, config: Mapping[str, Any], *, name: str, **more: Any) -> Subject:
    """Returns a model of transformers by a config of its own.

    Args:
        kind: Kind of the config.
        config: Its other fields.
        name: Its name in the zoo.
        **more: As for `library`.
    """
    folder = Path(tempfile.gettempdir()) / "snugfit-zoo" / name.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "config.json"
    file.write_text(json.dumps({"model_type": kind, **config}), encoding="utf-8")
    return library("transformers", f"hf:{file}", name=name, **more)
