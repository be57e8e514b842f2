"""Models of a request: their names, built to look at or to try, and shown a sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from snugfit.errors import InputError, SnugfitError, message_of
from snugfit.recorder.materialise import without_memory
from snugfit.runs.request import Request
from snugfit.techniques.batches import map_tensors
from snugfit.training.evaluation import undisturbed
from snugfit.workloads.data import Splits
from snugfit.workloads.hf_files import holds_weights, stored_weights
from snugfit.workloads.model_files import describe
from snugfit.workloads.models import build_model, parse_model_args
from snugfit.workloads.stored_weights import StoredShards, StoredWeights
from snugfit.workloads.tasks import IMAGE_CLASSIFICATION, Task, classification_logits


def hub_name(request: Request) -> str | None:
    """Returns what follows `hf:`, None for other models."""
    prefix, _, name = request.model.partition(":")
    return name if prefix == "hf" else None


def starting_weights(request: Request) -> str | None:
    """Returns where training's weights start from: those asked for, else a `hf:` directory's, else None."""
    name = hub_name(request)
    if request.settings.weights is not None or name is None:
        return request.settings.weights
    return "DEFAULT" if holds_weights(name) else None


def stored_start(request: Request) -> StoredWeights | StoredShards | None:
    """Returns the opened starting file(s); None where a library has the values, or they are drawn."""
    weights, name = starting_weights(request), hub_name(request)
    if name is not None and weights == "DEFAULT":
        return stored_weights(name)
    return StoredWeights(weights) if weights is not None and weights.endswith(".safetensors") else None


def without_weights(spec: str, **given: Any) -> torch.nn.Module:
    """Builds a named model without memory; really, on the way, where its constructor needs values."""
    try:
        return build_model(spec, **given, init="device", device="meta")
    except InputError:
        return build_model(spec, **given, init="host", device="meta")


def whole_model(request: Request, num_classes: int | None = None, *, values: bool = False) -> torch.nn.Module:
    """Returns the model without memory, to look at, or with random values, to try; a given module as it is."""
    model: Any = request.given.model
    if isinstance(model, torch.nn.Module):
        return model
    if model is None:
        return (build_model if values else without_weights)(request.model, **told(request, num_classes))
    made: torch.nn.Module = model() if values else without_memory(lambda _: model())
    return made


def told(request: Request, num_classes: int | None) -> dict[str, Any]:
    """Returns what the caller has said about how a named model is built."""
    return {"model_args": parse_model_args(request.model_args), "num_classes": num_classes, "task": request.task}


def check_sample(request: Request, data: Splits, task: Task, model_args: Mapping[str, Any]) -> None:
    """Sends a sample through the model, without memory if that will do; there must be a score for each label.

    Models of transformers take text as it is made for them: of those only the number of labels is compared.
    """

    def scores(model: torch.nn.Module) -> int | None:
        place = next((weight.device for weight in model.parameters()), torch.device("cpu"))
        moved = map_tensors(batch, lambda tensor: tensor.to(place))
        with undisturbed(model), torch.no_grad():
            output = model(moved[0]) if images else model(**moved)
            if task.loss is None:
                task.loss_of(output, moved)
        return None if data.num_classes is None else int(classification_logits(output).shape[1])

    images = request.task == IMAGE_CLASSIFICATION
    with_values = [False, True]
    if images:
        try:
            batch = data.train.batch([0])
        except RuntimeError as error:  # no memory for one image
            raise InputError(
                f"an image of {data.name} cannot be made: {message_of(error)}. Give a smaller --image-size."
            ) from error
        given = f"an image of {data.name}, shape {list(batch[0].shape[1:])}"
        todo = "Give --image-size, --model-arg, or a model for such images."
    else:
        batch = data.train.batch(range(min(2, len(data.train))))
        given = f"a batch of {data.name} ({', '.join(batch)})"
        todo = "It is called as model(**batch) and must return its loss, as models of transformers do."
        if data.num_classes is not None:
            batch["labels"].zero_()  # too few outputs are told below, not by the loss
        # Models of transformers take it; in others nobody sees without memory that an id has no embedding.
        with_values = [True] if hub_name(request) is None else []
    found = model_args.get("num_labels", model_args.get("num_classes"))
    for values in with_values:
        try:
            found = scores(whole_model(request, data.num_classes, values=values))
            break
        except (Exception, SystemExit) as error:
            # Some operators do not run without memory; what is really wrong, if anything, a real model says.
            if values and isinstance(error, SnugfitError):
                raise
            if values:
                if images and hasattr(whole_model(request, data.num_classes), "training_batch"):
                    todo = (
                        "Its training_batch is for `snugfit estimate` and `snugfit plan`; train it from Python, with data "
                        "of yours (snugfit.train or snugfit.prepare)."
                    )
                raise InputError(
                    f"model {request.model!r} cannot take {given}: {describe(error, None).rstrip('.')}. {todo}"
                ) from error
    if data.num_classes is not None and found is not None and found < data.num_classes:
        raise InputError(
            f"model {request.model!r} tells {found} classes apart, and {data.name} has {data.num_classes}. Give the model "
            "more outputs (a num_classes argument, num_labels in a config), or other data."
        )
