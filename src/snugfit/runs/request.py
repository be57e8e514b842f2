"""What is trained, by names or Python objects, as a run directory keeps it. Imports no torch."""

from __future__ import annotations

import ast
import dataclasses
import re
import shlex
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from snugfit.errors import InputError, RecipeError
from snugfit.workload import Workload

Collate = Callable[[list[Any]], Any]

PYTHON = "python:"
"""Prefix of the name of a model or data that was given as a Python object."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """Python objects that `snugfit.train` was given in place of names, and functions."""

    model: Any = None
    """The model, or what builds it; None: it has a name."""
    data: Any = None
    """(training, validation) or (training, validation, test) datasets, or opened data; None: it has a name."""
    loss: Any = None
    """As for `snugfit.prepare`; None: the task's, or the model's own."""
    loss_weight: Any = "samples"
    """As for `snugfit.prepare`."""
    forward: Any = None
    """As for `snugfit.prepare`."""
    split: Any = None
    """As for `snugfit.prepare`."""
    collate: Collate | None = None
    """From a list of samples to a batch; None: torch's way."""

    @property
    def any(self) -> bool:
        """Whether there is an object at all."""
        objects = (self.model, self.data, self.loss, self.forward, self.split, self.collate)
        return any(one is not None for one in objects)


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
    given: Given = dataclasses.field(default=Given(), compare=False)
    """What came as Python objects, of which `model` and `data` are then only names; not kept."""

    @property
    def model_file(self) -> Path | None:
        """The file whose function builds the model; None for other models."""
        path = self.model.rpartition(":")[0]
        return Path(path).expanduser() if self.given.model is None and path.endswith(".py") else None

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


NAMES = tuple(field.name for field in dataclasses.fields(Request) if field.name != "given")
"""What a run directory keeps of a request."""


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


def name_of(given: Any) -> str | None:
    """Returns the name under which a run directory remembers a model or data; None where nothing was given."""
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, list | tuple) and given:
        given = given[0]
    return PYTHON + str(getattr(given, "__qualname__", None) or type(given).__name__)


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


def resume_command(path: Path, request: Request, rdzv: str | None = None) -> str:
    """Returns what to type to go on with a run: a line for a shell; for a run of Python objects, a call."""
    if request.given.any:
        return f"snugfit.train(model, data, run_dir={str(path)!r}, resume=True), with the same model and data"
    meeting = "" if rdzv is None else f" --rdzv {rdzv}"
    return f"snugfit train --run-dir {shlex.quote(str(path))} --resume{meeting}"


def short_name(spec: str) -> str:
    """Returns the short name of a model: `resnet18` of `timm:resnet18`, the folder of a config file or path."""
    prefix, _, name = spec.partition(":")
    if prefix != "hf":
        return spec.rpartition(":")[2]
    path = Path(name)
    return (path.absolute().parent if path.suffix == ".json" else path).name or name
