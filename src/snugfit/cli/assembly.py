"""From a request to its parts: device, data, model, trainer. torch is imported by the functions, not by the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from snugfit.cli import options
from snugfit.cli.request import Request
from snugfit.errors import InputError
from snugfit.recipe import Recipe

if TYPE_CHECKING:
    import torch

    from snugfit.training.step import Trainer
    from snugfit.workloads.data import Splits
    from snugfit.workloads.tasks import Task


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


def open_matching_data(request: Request, *, download: bool) -> Splits:
    """Opens the data in the shape that the model takes, and checks that the two go together.

    Args:
        request: What is to be trained.
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
    )
    _check_shapes(data, request)
    return data


def _skeleton(request: Request, num_classes: int | None = None) -> torch.nn.Module:
    """Builds the model without memory, to look at; for real where its constructor needs values."""
    from snugfit.workloads.models import build_model, parse_model_args

    model_args = parse_model_args(request.model_args)
    try:
        return build_model(request.model, model_args=model_args, num_classes=num_classes, init="device", device="meta")
    except InputError:
        return build_model(request.model, model_args=model_args, num_classes=num_classes)


def _check_shapes(data: Splits, request: Request) -> None:
    """Sends one image through the model, without memory where that works; there must be a score for each label."""
    import torch

    from snugfit.workloads.models import build_model, parse_model_args
    from snugfit.workloads.tasks import classification_logits

    images = data.train[0][0].unsqueeze(0)

    def scores(model: torch.nn.Module) -> int:
        place = next((weight.device for weight in model.parameters()), images.device)
        with torch.no_grad():
            return classification_logits(model.eval()(images.to(place))).shape[1]

    try:
        found = scores(_skeleton(request, data.num_classes))
    except Exception:
        # Some operators do not run without memory; what is really wrong, if anything, a real model says.
        model_args = parse_model_args(request.model_args)
        model = build_model(request.model, model_args=model_args, num_classes=data.num_classes)
        try:
            found = scores(model)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"model {request.model!r} cannot take an image of {data.name}, shape {list(images.shape[1:])}: "
                f"{' '.join(str(error).split())}. Give --image-size, --model-arg, or a model for such images."
            ) from error
    if found < data.num_classes:
        raise InputError(
            f"model {request.model!r} tells {found} classes apart, and {data.name} has {data.num_classes}. Give the model a "
            "num_classes argument, or other data."
        )


def build_trainer(
    recipe: Recipe,
    request: Request,
    data: Splits,
    device: torch.device,
    task: Task,
    total_steps: int,
) -> Trainer:
    """Builds the model and prepares it, seeded.

    Args:
        recipe: How the step is held in memory.
        request: What is to be trained.
        data: Its number of classes decides the model's head.
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

    settings = request.settings
    dtypes = {"16": torch.float16, "bf16": torch.bfloat16, None: None}
    seed_everything(settings.seed)
    with phase("build"):
        model = build_model(
            request.model,
            model_args=parse_model_args(request.model_args),
            num_classes=data.num_classes,
            weights=settings.weights,
            freeze=settings.freeze,
            init=recipe.init,
            device=device,
            dtype=dtypes[recipe.true_precision],
        )
    given = {**settings.to_mapping(), "max_steps": total_steps}
    for name in ("optimizer", *options.TRAITS):  # prepare reads the traits off the model
        del given[name]
    return prepare(
        model,
        recipe,
        loss=task.loss,
        loss_weight=cast(Any, task.loss_weight),
        optimizer=settings.optimizer,
        device=device,
        **given,
    )
