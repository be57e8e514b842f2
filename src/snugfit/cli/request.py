"""What `snugfit train` was asked to do: a new run, or one to go on with. Decided without torch."""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
import typing
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snugfit.cli import options
from snugfit.errors import InputError, RecipeError, SnugfitWarning
from snugfit.fidelity import contradictions
from snugfit.fields import field_infos
from snugfit.recipe import Recipe
from snugfit.workload import Workload

CHANGEABLE = ("epochs", "max_steps", "evaluate", "eval_every", "save_every")
"""Training settings that a resumed run may be given anew: how long and how often, not what a step does."""

FIXED = ("precision", "optimizer")
"""Recipe fields that a resumed run keeps; the others only say how the same step is held in memory."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What is to be trained: all that a run directory must keep to build the same run again."""

    model: str
    """Model spec."""
    model_args: tuple[str, ...]
    """Arguments of its constructor, as typed."""
    data: str
    """Data spec."""
    task: str | None
    """Name of the task; None: what data and model are for, which is decided before training starts."""
    image_size: int | None
    """Side of the images; None: the model's own."""
    seq_len: int | None
    """Most tokens of a text; None: 512, or fewer where the model takes fewer."""
    packing: bool
    """Whether short texts share a row."""
    text_column: str | None
    """Column of the texts; None: found by its name."""
    label_column: str | None
    """Column of the labels; None: found by its name."""
    prompt_column: str | None
    """Column of prompts; None: found by its name."""
    samples: int | None
    """Training samples at most; None: the data's own number."""
    device: str
    """auto, cpu or cuda."""
    settings: Workload
    """Training settings, without the traits of the model."""
    strict: bool = False
    """Whether an image file that cannot be read stops the run."""

    def to_mapping(self) -> dict[str, Any]:
        """Returns plain data for `workload.yaml`."""
        plain = {name: getattr(self, name) for name in _NAMES}
        return {**plain, "model_args": list(self.model_args), "settings": self.settings.to_mapping()}

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Request:
        """Reads what `to_mapping` wrote.

        Args:
            given: Field name -> plain value.

        Returns:
            The request.

        Raises:
            InputError: The file was altered and does not say it all.
        """
        needed = [field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING]
        problems = [f"{name} is missing." for name in needed if name not in given]
        hints = typing.get_type_hints(cls)
        for name, value in given.items():
            kinds = typing.get_args(hints.get(name)) or (hints.get(name),)
            if name not in _NAMES:
                problems.append(f"{name!r} is no field; allowed: {', '.join(_NAMES)}.")
            elif name == "model_args":
                problems += [] if isinstance(value, list) else [f"{name} is {value!r}; it takes a list."]
            elif not isinstance(value, dict if name == "settings" else kinds):
                problems.append(f"{name} is {value!r}, which it cannot be.")
        if problems:
            problems.append(
                "It was altered, or written by another version of snugfit: put it right, or start another run."
            )
            raise RecipeError(problems, subject="workload.yaml of the run")
        settings = Workload.from_mapping(given["settings"])
        return cls(**{**given, "model_args": tuple(map(str, given["model_args"])), "settings": settings})


_NAMES = tuple(field.name for field in dataclasses.fields(Request))


def new_request(args: argparse.Namespace) -> tuple[Recipe, Request]:
    """Reads a new run from the command line.

    Args:
        args: What the command line gave.

    Returns:
        The recipe, and the rest.

    Raises:
        InputError: Model or data is missing, or an option cannot be used.
        RecipeError: Listing every mistake in recipe and training settings.
    """
    missing = [name for name, given in (("MODEL", args.model), ("--data", args.data)) if given is None]
    if missing:
        raise InputError(
            f"{' and '.join(missing)} must be given, for example `snugfit train torchvision:resnet18 --data digits`; only "
            "--run-dir DIR --resume knows them already."
        )
    recipe, settings = options.settings_from(args)
    return recipe, Request(
        model=args.model,
        model_args=tuple(args.model_args or ()),
        data=args.data,
        task=args.task,
        image_size=args.image_size,
        seq_len=args.seq_len,
        packing=bool(args.packing),
        text_column=args.text_column,
        label_column=args.label_column,
        prompt_column=args.prompt_column,
        samples=args.samples,
        device=args.device or "auto",
        settings=settings,
        strict=bool(args.strict),
    )


def resumed_request(args: argparse.Namespace, recipe: Recipe, stored: Request) -> tuple[Recipe, Request]:
    """Compares what was typed beside `--resume` with the run, so that no change is silently ignored.

    Args:
        args: What the command line gave.
        recipe: The run's recipe.
        stored: The run's request.

    Returns:
        The run's recipe, changed where that was asked for, which is said in a warning; and its request with a new length,
        new intervals or a new device.

    Raises:
        RecipeError: Listing each option that would make it another run.
    """
    problems = [
        f"{name} is {value!r}; the run has {getattr(stored, name)!r}."
        for name in _NAMES
        if name not in ("settings", "device")
        and (value := getattr(args, name)) is not None
        and (tuple(value) if isinstance(value, list) else value) != getattr(stored, name)
    ]
    wanted = recipe.replace(**options.given_recipe(args)) if args.recipe_file is None else options.recipe_from(args)
    changed = [name for name in field_infos(Recipe) if getattr(wanted, name) != getattr(recipe, name)]
    for name in FIXED:
        if name in changed:
            problems.append(f"{name} is {getattr(wanted, name)!r}; the run has {getattr(recipe, name)!r}.")
    given = options.given_workload(args)
    settings = stored.settings.replace(**given)
    free = CHANGEABLE if settings.lr_schedule == "constant" else CHANGEABLE[2:]
    for name in given:
        if name not in free and getattr(settings, name) != getattr(stored.settings, name):
            problems.append(f"{name} is {getattr(settings, name)!r}; the run has {getattr(stored.settings, name)!r}.")
    if problems:
        problems[-1] += (
            " Leave that out, or start another run. What may change here: "
            f"{', '.join(free)}, device, and the recipe except precision and optimizer."
        )
        raise RecipeError(problems, subject="--resume goes on with the run as it was started")
    between = list(contradictions(wanted, settings))
    if between:
        raise RecipeError(between, subject="recipe against training settings")
    if changed:
        told = ", ".join(f"{name} {getattr(recipe, name)} -> {getattr(wanted, name)}" for name in changed)
        warnings.warn(
            f"the run goes on by another recipe ({told}), so its weights will not be bitwise those of a run that was never "
            "stopped.",
            SnugfitWarning,
        )
    return wanted, dataclasses.replace(stored, settings=settings, device=args.device or stored.device)


def default_run_dir(request: Request) -> Path:
    """Returns the first free directory of the form `runs/MODEL-DATA`, `runs/MODEL-DATA-2`, ...

    Args:
        request: What is to be trained.

    Returns:
        A path that does not exist.
    """
    words = [re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.") for text in (_last(request.model), request.data)]
    base = Path("runs") / "-".join(word for word in words if word)
    number, path = 1, base
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def resume_command(path: Path) -> str:
    """Returns the command that goes on with a run.

    Args:
        path: The run directory.

    Returns:
        A line for a shell.
    """
    return f"snugfit train --run-dir {shlex.quote(str(path))} --resume"


def _last(spec: str) -> str:
    """What tells a model apart: `resnet18` of `timm:resnet18`, and the folder of a config file or a path."""
    prefix, _, name = spec.partition(":")
    if prefix != "hf":
        return spec.rpartition(":")[2]
    path = Path(name)
    return (path.absolute().parent if path.suffix == ".json" else path).name or name
