"""What `snugfit train` was asked to do: a new run, or one to go on with. Decided without torch."""

from __future__ import annotations

import ast
import dataclasses
import re
import shlex
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from snugfit.errors import InputError, RecipeError, option, warn
from snugfit.fields import field_infos
from snugfit.recipe import Recipe
from snugfit.run import Run, by_owner
from snugfit.training.run_results import CHECKPOINTS
from snugfit.workload import Workload

CHANGEABLE = ("epochs", "max_steps", "evaluate", "eval_every", "save_every", "patience", "gpus", "nodes")
"""Training settings that a resumed run may be given anew: how long, how often and by how many, not what a step does."""

PYTHON = "python:"
"""Prefix of the name of a model or data that was given as a Python object."""

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
    given: Any = dataclasses.field(default=None, compare=False)
    """A `Given`: what came as Python objects, of which `model` and `data` are then only names; not kept."""

    def to_mapping(self) -> dict[str, Any]:
        """Returns plain data for `workload.yaml`."""
        plain = {name: getattr(self, name) for name in NAMES}
        return {**plain, "model_args": list(self.model_args), "settings": self.settings.to_mapping()}

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Request:
        """Reads what `to_mapping` wrote; `InputError` where the file was altered."""
        needed = [field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING]
        problems = [f"{name} is missing." for name in needed if name not in given]
        hints = typing.get_type_hints(cls)
        for name, value in given.items():
            kinds = typing.get_args(hints.get(name)) or (hints.get(name),)
            if name not in NAMES:
                problems.append(f"{name!r} is no field; allowed: {', '.join(NAMES)}.")
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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class How:
    """How a run is started and watched; unlike `Request`, its directory does not keep this."""

    download: bool
    """Whether data and models may be fetched."""
    tensorboard: bool
    """Whether event files are written."""
    progress: bool
    """Whether progress is shown."""
    resume: bool
    """Whether the run goes on."""


NAMES = tuple(field.name for field in dataclasses.fields(Request) if field.name != "given")
"""What a run directory keeps of a request."""


def resumed_request(
    told: Mapping[str, Any], options: Mapping[str, Any], wanted: Recipe | None, recipe: Recipe, stored: Request
) -> tuple[Recipe, Request]:
    """Compares what is given along with `resume` with the run, so that no change is silently ignored.

    `told`: field of the request -> what was said of it; None: nothing.
    Returns the run's recipe, changed where that was asked for, which is said in a warning; and its request with a new
    length, new intervals or a new device.
    """
    problems = [
        f"{name} is {value!r}; the run has {getattr(stored, name)!r}."
        for name, value in told.items()
        if name != "device" and value is not None and value != getattr(stored, name)
    ]
    fields, given = by_owner(options)
    wanted = (wanted or recipe).replace(**fields)
    changed = [name for name in field_infos(Recipe) if getattr(wanted, name) != getattr(recipe, name)]
    for name in FIXED:
        if name in changed:
            problems.append(f"{name} is {getattr(wanted, name)!r}; the run has {getattr(recipe, name)!r}.")
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
        raise RecipeError(problems, subject=f"{option('resume')} goes on with the run as it was started")
    Run(wanted, settings)
    if changed:
        told_changes = ", ".join(f"{name} {getattr(recipe, name)} -> {getattr(wanted, name)}" for name in changed)
        warn(
            f"the run goes on by another recipe ({told_changes}), so its weights will not be bitwise those of a run that "
            "was never stopped.",
        )
    elif settings.ranks != stored.settings.ranks:
        warn(
            f"the run goes on in {settings.ranks} processes, and had {stored.settings.ranks}: its weights will agree with "
            "those of a run that was never stopped up to rounding, not bitwise."
        )
    return wanted, dataclasses.replace(stored, settings=settings, device=told.get("device") or stored.device)


def free_run_dir(model: Any, data: Any) -> Path:
    """Returns the first free directory of the form `runs/MODEL-DATA`, `runs/MODEL-DATA-2`, ..."""
    return free_directory(_last(_said(model)), _said(data))


def _said(given: Any) -> str:
    return given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)


def free_directory(*words: str) -> Path:
    """Returns the first free directory of the form `runs/A-B`, `runs/A-B-2`, ...

    `words`: what it is named after; other characters than letters, digits, `_` and `.` become dashes.
    """
    plain = [re.sub(r"[^A-Za-z0-9_.]+", "-", word).strip("-.") for word in words]
    base = Path("runs") / "-".join(word for word in plain if word)
    number, path = 1, base
    while path.exists():
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def is_named(spec: str) -> bool:
    """Returns whether a model or data can be had again by its name alone, without a Python object."""
    return not spec.startswith(PYTHON)


def model_arguments(given: Mapping[str, Any] | Iterable[str]) -> tuple[str, ...]:
    """Returns constructor arguments as they are typed: `depth=12`; `InputError` for other objects."""
    if not isinstance(given, Mapping):
        return tuple(given)
    texts = []
    for name, value in given.items():
        try:
            written = isinstance(value, str) or ast.literal_eval(repr(value)) == value
        except (ValueError, SyntaxError):
            written = False
        if not written:
            raise InputError(
                f"model_arg {name} is {value!r}, which a run directory cannot keep; give a function that builds the model."
            )
        texts.append(f"{name}={value if isinstance(value, str) else repr(value)}")
    return tuple(texts)


def resume_command(path: Path, request: Request) -> str:
    """Returns what to type to go on with a run.

    A line for a shell; for a run of Python objects, a call.
    """
    if request.given is not None:
        return f"snugfit.train(model, data, run_dir={str(path)!r}, resume=True), with the same model and data"
    return f"snugfit train --run-dir {shlex.quote(str(path))} --resume"


def saved_words(path: Path, how_to_resume: str) -> str:
    """Returns a sentence on what an interrupted run leaves, and how to go on with it."""
    paths = sorted((path / CHECKPOINTS).glob("step-*.ckpt"))
    saved = f"Saved: {paths[-1]}." if paths else "No checkpoint was saved yet, so the run starts over."
    return f"{saved} Go on with: {how_to_resume}"


def _last(spec: str) -> str:
    """The short name of a model: `resnet18` of `timm:resnet18`, the folder of a config file or path."""
    prefix, _, name = spec.partition(":")
    if prefix != "hf":
        return spec.rpartition(":")[2]
    path = Path(name)
    return (path.absolute().parent if path.suffix == ".json" else path).name or name
