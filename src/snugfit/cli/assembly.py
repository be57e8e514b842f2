"""From a request to its parts: device, data, model, trainer. torch is imported by the functions, not by the file."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

from snugfit.cli import options, text_assembly
from snugfit.cli.request import Request
from snugfit.errors import InputError

IMAGES = "image-classification"
TRAINED = (IMAGES, *text_assembly.TEXT_TASKS)
"""Tasks that `snugfit train` reads data for."""

if TYPE_CHECKING:
    import torch

    from snugfit.cli.budget import Chosen
    from snugfit.training.step import Trainer
    from snugfit.workloads.data import Splits
    from snugfit.workloads.tasks import Task
    from snugfit.workloads.text import TextSplits


def resolve_device(name: str) -> torch.device:
    """Returns where to train.

    Args:
        name: auto, cpu or cuda.

    Returns:
        The device; auto is CUDA where there is one.

    Raises:
        InputError: CUDA is asked for and not there.
    """
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' is not there: torch sees no CUDA device. Use --device cpu, or leave it out.")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def with_task(request: Request, *, download: bool) -> Request:
    """Returns the request with its task: as asked for, else what the data is for, else the model.

    Args:
        request: What is to be trained.
        download: Whether a `hf:` model that is missing may be fetched.

    Returns:
        The same, with a task.

    Raises:
        InputError: There is no such task, or not for this model; or the model cannot be fetched.
    """
    from snugfit.workloads.model_batches import task_of
    from snugfit.workloads.text import TASK_OF_DATA

    name = text_assembly.hub_name(request)
    if name is not None:
        from snugfit.workloads.hf import is_kind
        from snugfit.workloads.hf_files import fetch

        if download:
            fetch(name)
        if is_kind(name):
            raise InputError(
                f"model 'hf:{name}' is a kind of model without weights and tokenizer, which `snugfit estimate` and "
                "`snugfit plan` take. To train give a directory with a config.json, or a model of the hub with --download."
            )
    task = request.task or TASK_OF_DATA.get(request.data.partition(":")[0])
    found = task_of(request.model, task, _readable(request.data))
    if found not in TRAINED:
        raise InputError(
            f"task {found!r} can be estimated and planned, but `snugfit train` reads data for {', '.join(TRAINED)} only. "
            "Train it from Python: snugfit.prepare(model, plan) and trainer.step(batch) in your own loop."
        )
    return dataclasses.replace(request, task=found)


def _readable(data: str) -> tuple[str, ...]:
    """The tasks that data of a kind can be for."""
    from snugfit.workloads.data import FORMS

    if data == "random":
        return TRAINED
    images = data.partition(":")[0] in {form.partition(":")[0] for form in FORMS}
    return (IMAGES,) if images else text_assembly.TEXT_TASKS


def open_matching_data(request: Request, *, download: bool) -> Splits | TextSplits:
    """Opens the data in the shape that the model takes, and checks that the two go together.

    Args:
        request: What is to be trained; has a task.
        download: Whether data that is missing may be fetched.

    Returns:
        Training, validation and test part.

    Raises:
        InputError: Model or data cannot be had, or they do not go together.
    """
    from snugfit.workloads.data import open_data
    from snugfit.workloads.models import input_channels, input_size, output_classes, parse_model_args

    model_args = parse_model_args(request.model_args)
    model = _skeleton(request)
    if request.task in text_assembly.TEXT_TASKS:
        text = text_assembly.open_matching_text(request, model, download=download)
        text_assembly.check_text_model(request, text, model_args)
        return text
    _refuse_text_options(request)
    # Labels of random data run over the classes that the model has; other data brings its own, and the head follows.
    classes = output_classes(model) if request.data == "random" else model_args.get("num_classes")
    data = open_data(
        request.data,
        image_size=request.image_size or input_size(model, request.model),
        channels=input_channels(model),
        num_classes=classes,
        seed=request.settings.seed,
        download=download,
        samples=request.samples,
        strict=request.strict,
    )
    _check_shapes(data, request)
    return data


def _refuse_text_options(request: Request) -> None:
    names = ("seq_len", "packing", "text_column", "label_column", "prompt_column")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(request, name) not in (None, False)]
    if given:
        raise InputError(f"{', '.join(given)} has no meaning for {request.task}. Leave it out.")


def _skeleton(request: Request, num_classes: int | None = None) -> torch.nn.Module:
    """Builds the model without memory, to look at; for real where its constructor needs values."""
    from snugfit.workloads.models import build_model, parse_model_args

    given: dict[str, Any] = {
        "model_args": parse_model_args(request.model_args),
        "num_classes": num_classes,
        "task": request.task,
    }
    try:
        return build_model(request.model, **given, init="device", device="meta")
    except InputError:
        return build_model(request.model, **given)


def _check_shapes(data: Splits, request: Request) -> None:
    """Sends one image through the model, without memory where that works; there must be a score for each label."""
    import torch

    from snugfit.workloads.model_files import describe
    from snugfit.workloads.models import build_model, parse_model_args
    from snugfit.workloads.tasks import classification_logits

    try:
        images = data.train[0][0].unsqueeze(0)
    except RuntimeError as error:  # no memory for one image
        raise InputError(
            f"an image of {data.name} cannot be made: {' '.join(str(error).split())}. Give a smaller --image-size."
        ) from error

    def scores(model: torch.nn.Module) -> int:
        place = next((weight.device for weight in model.parameters()), images.device)
        with torch.no_grad():
            return classification_logits(model.eval()(images.to(place))).shape[1]

    try:
        found = scores(_skeleton(request, data.num_classes))
    except (Exception, SystemExit):
        # Some operators do not run without memory; what is really wrong, if anything, a real model says.
        model_args = parse_model_args(request.model_args)
        model = build_model(request.model, model_args=model_args, num_classes=data.num_classes, task=request.task)
        try:
            found = scores(model)
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(
                f"model {request.model!r} cannot take an image of {data.name}, shape {list(images.shape[1:])}: "
                f"{describe(error, None)}. Give --image-size, --model-arg, or a model for such images."
            ) from error
    if found < data.num_classes:
        raise InputError(
            f"model {request.model!r} tells {found} classes apart, and {data.name} has {data.num_classes}. Give the model a "
            "num_classes argument, or other data."
        )


def build_trainer(
    chosen: Chosen,
    request: Request,
    data: Splits | TextSplits,
    device: torch.device,
    task: Task,
    total_steps: int,
) -> Trainer:
    """Builds the model and prepares it, seeded.

    Args:
        chosen: How the step is held in memory, and what a plan has promised about it.
        request: What is to be trained.
        data: Its number of classes decides the model's head, its tokenizer the ids that the model knows as special.
        device: Where to train.
        task: The loss.
        total_steps: Updates of the whole run; the schedule ends with them.

    Returns:
        The trainer.

    Raises:
        InputError: The model cannot be built, or the recipe cannot be carried out on it.
    """
    import torch

    from snugfit.training.phases import phase
    from snugfit.training.prepare import prepare
    from snugfit.training.random_state import seed_everything
    from snugfit.workloads.models import build_model, parse_model_args
    from snugfit.workloads.text import TextSplits

    settings, recipe = request.settings, chosen.recipe
    model_args = parse_model_args(request.model_args)
    if isinstance(data, TextSplits):
        model_args = text_assembly.text_model_args(request, data, model_args)
    dtypes = {"16": torch.float16, "bf16": torch.bfloat16, None: None}
    seed_everything(settings.seed)
    with phase("build"):
        model = build_model(
            request.model,
            model_args=model_args,
            num_classes=data.num_classes,
            task=request.task,
            weights=text_assembly.starting_weights(request),
            freeze=settings.freeze,
            init=recipe.init,
            device=device if recipe.quantize == "none" else torch.device("cpu"),  # packed layers go to the device alone
            dtype=dtypes[recipe.true_precision],
        )
        if request.packing:
            text_assembly.check_packing(request, model)
    given = {**settings.to_mapping(), "max_steps": total_steps}
    for name in ("optimizer", *options.TRAITS):  # prepare reads the traits off the model
        del given[name]
    return prepare(
        model,
        chosen,
        loss=task.loss,
        loss_weight=cast(Any, task.loss_weight),
        optimizer=settings.optimizer,
        device=device,
        **given,
    )
