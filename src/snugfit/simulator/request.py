"""A model by its name, and the part of its recording that runs in a worker: build it, shape its batch.

Imports no torch, so that the command line can send a request by name and read the recording without loading torch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from snugfit.fake_device.personality import Personality
from snugfit.recipe import Recipe
from snugfit.report.words import as_options
from snugfit.uncollected import uncollected
from snugfit.values.assumptions import Assumptions

if TYPE_CHECKING:
    import torch

    from snugfit.workloads.model_batches import TrainingBatch


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NamedModel:
    """A model by its name, and the shape of the batch it is trained on."""

    spec: str
    """torchvision:NAME, timm:NAME, hf:CONFIG or path/file.py:function."""
    model_args: tuple[str, ...] = ()
    """Arguments of its constructor, as typed (`key=value`)."""
    task: str | None = None
    """One of `workloads.tasks.TASKS`; None: what the model is for."""
    image_size: int | None = None
    """Side of the images; None: the model's own."""
    seq_len: int | None = None
    """Tokens of a sequence; None: 512, or fewer where the model takes fewer."""
    frames: int | None = None
    """Frames of a clip, for models of video; None: the model's own."""
    assume: Assumptions = dataclasses.field(default_factory=Assumptions)
    """What may be taken for granted about values."""

    @property
    def shape(self) -> dict[str, int | None]:
        """The shape of a sample, as `workloads.model_batches.batch_for` takes it."""
        return {"image_size": self.image_size, "seq_len": self.seq_len, "frames": self.frames}

    @property
    def options(self) -> tuple[str, ...]:
        """What is typed behind the name, but for assumptions."""
        words = [word for one in self.model_args for word in ("--model-arg", one)]
        return (*words, *as_options({"task": self.task, **self.shape}))


def record_named(
    named: NamedModel,
    batch_size: int,
    settings: Mapping[str, Any],
    recipe: Recipe,
    personality: Personality,
    *,
    rank: int = 0,
    really: bool = False,
    whole: bool = False,
    most_weight_bytes: int | None = None,
) -> Any:
    """Returns the recording of a model by name, or what a real try came to; as `record_given`, in a worker."""
    from snugfit.simulator.given_training import record_given
    from snugfit.simulator.session import without_logs

    without_logs()
    task, model, made = _built_with_batch(named, batch_size)
    from snugfit.workloads.tasks import READ

    arguments = {
        **settings,
        "batch_size": batch_size,
        **made.task.arguments(),
        "assume": named.assume.completed(made.assume),
    }
    # Of tasks whose data nobody reads, the loss is all that an evaluation has.
    reported = made.task if made.task.name in READ else None
    build = functools.partial(_itself, model)
    how: dict[str, Any] = {"rank": rank, "really": really, "whole": whole, "most_weight_bytes": most_weight_bytes}
    recorded = record_given(build, made.batch, arguments, recipe, personality, task=reported, **how)
    return (
        recorded
        if really
        else dataclasses.replace(recorded, answered=(*recorded.answered, *_assumed(named, task, made.assumed)))
    )


def check_named(named: NamedModel, batch_size: int) -> None:
    """Raises where a model by name, or a batch for it, cannot be made; in a worker, which has its library from then on."""
    _built_with_batch(named, batch_size)


def _built_with_batch(named: NamedModel, batch_size: int) -> tuple[str, torch.nn.Module, TrainingBatch]:
    """Builds a model by name, and the batch that it is trained on."""
    task, model = build_named(named)
    from snugfit.workloads.model_batches import batch_for

    return task, model, batch_for(model, named.spec, task, batch_size=batch_size, device="meta", **named.shape)


def _itself(model: torch.nn.Module) -> torch.nn.Module:
    """Returns a module that is built already, for code that calls what it is given."""
    return model


def build_named(named: NamedModel) -> tuple[str, torch.nn.Module]:
    """Builds a model by name without memory, and returns its task and the model; runs in a worker."""
    with uncollected():  # the model's library is imported here; see the worker
        from snugfit.recorder.materialise import without_memory
        from snugfit.workloads.model_batches import task_of
        from snugfit.workloads.models import build_model, parse_model_args

        task, model_args = task_of(named.spec, named.task), parse_model_args(named.model_args)

        def build(device: str) -> torch.nn.Module:
            init = "device" if device == "meta" else "host"
            return build_model(named.spec, model_args=model_args, task=task, init=init, device="meta")

        return task, without_memory(build)


def _assumed(named: NamedModel, task: str, assumed: tuple[str, ...]) -> tuple[str, ...]:
    """What was decided for the person who named a model, in words."""
    if not named.spec.startswith("hf:"):
        return assumed
    from snugfit.workloads.hf import is_kind

    name = named.spec.partition(":")[2]
    sizes = (f"the sizes are those that transformers takes for {name} where nothing is said",) if is_kind(name) else ()
    return (*(() if named.task else (f"the task is {task}, after the config",)), *sizes, *assumed)
