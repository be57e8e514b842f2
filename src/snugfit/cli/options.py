"""Recipe and training settings as options, made from the fields themselves; imports no torch.

`--optimizer` names the workload's optimizer; one with low-bit state (adamw8bit) is the workload's adamw, held by the recipe
in fewer bits. A recipe's replacement by another algorithm stands in the recipe file, where it is labelled.
"""

from __future__ import annotations

import argparse
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from snugfit.cli import groups, output
from snugfit.errors import InputError, RecipeError
from snugfit.fields import FieldInfo, field_docs, field_infos, from_text
from snugfit.planner.constraints import Constraints, constraints_from
from snugfit.recipe import Recipe
from snugfit.run import Run, by_owner, check_weights_file
from snugfit.units import parse_bytes
from snugfit.values.assumptions import Assumptions, assumptions_from
from snugfit.workload import DEFAULT_BATCH_SIZE, Workload

if TYPE_CHECKING:
    from snugfit.simulator.request import NamedModel

_TRAITS = ("batch_norm", "dropout", "half_weights")
PYTHON_ONLY = ("keep_gradients", "keep_outputs")
"""Fields of the workload that make no difference to a run from the command line."""

_READ: dict[Any, Any] = {int: output.whole_number, Path: output.some_path}


def add_options(group: Any, options: type, *names: str, judged: bool = True) -> None:
    """Adds an option for each field of a class; the docstring under a field is its help.

    `options`: the class. A field says the type of its value and, by `Annotated`, the word for it and how it is taken; a
    switch without a default is neither on nor off.
    `names`: some of its fields; none: all.
    `judged`: whether values are judged as they are read, one mistake at a time.
    """
    docs = {name: text.replace("%", "%%") for name, text in field_docs(options).items()}
    for name, hint in typing.get_type_hints(options, include_extras=True).items():
        if names and name not in names:
            continue
        option, default = "--" + name.replace("_", "-"), getattr(options, name, None)
        kind, *word = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
        if kind is bool and default:  # what is on by itself can be switched off
            off = option.replace("--", "--no-", 1)
            group.add_argument(off, dest=name, action="store_false", help=f"Switches off: {docs[name]}")
            continue
        if kind is bool:
            group.add_argument(option, action="store_true", default=default, help=docs[name])
            continue
        group.add_argument(
            option,
            action="append" if kind is list else word[1] if len(word) > 1 else "store",
            metavar=word[0] if word else None,
            type=_READ.get(kind) if judged else None,
            default=default,
            help=docs[name],
        )


def add_recipe_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--recipe` and an option for each field of `Recipe`."""
    group = parser.add_argument_group("recipe: how the step is held in memory")
    group.add_argument(
        "--recipe",
        metavar="FILE",
        dest="recipe_file",
        type=output.some_path,
        help="YAML file of `field: value` lines; the options below go before it.",
    )
    add_fields(group, recipe_fields(), "recipe_")


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    """Adds an option for each field of `Workload`, except the model's traits."""
    group = parser.add_argument_group("training settings: what is learned")
    add_fields(group, workload_fields(), "workload_")


def add_fields(group: argparse._ArgumentGroup, infos: Iterable[FieldInfo], prefix: str) -> None:
    """Adds an option for each of some fields; `prefix` comes before their names in the parsed arguments."""
    for info in infos:
        default = DEFAULT_BATCH_SIZE if info.name == "batch_size" else info.default
        _add_option(group, info, prefix + info.name, default)


def add_shape_options(
    parser: argparse.ArgumentParser, *, optional: bool = False, or_file: bool = False, or_script: bool = False
) -> None:
    """Adds MODEL and what describes a batch without data, for commands that train nothing.

    `optional`: whether MODEL may be left out; `or_file`: whether another tool's configuration may say it; `or_script`:
    whether a training script may stand there.
    """
    add = parser.add_argument
    models = "torchvision:NAME, timm:NAME, hf:DIR_OR_CONFIG_JSON, hf:KIND or path/file.py:function"
    models += (
        "; or a training script or notebook, path/train.py or -m MODULE, with its own arguments behind it"
        if or_script
        else ""
    )
    add("model", metavar="MODEL", help=models, nargs="?" if optional or or_file else None)
    if or_file:
        add(
            "--from",
            dest="from_file",
            metavar="FILE",
            type=output.some_path,
            help="configuration of axolotl, LLaMA-Factory, DeepSpeed or transformers (TrainingArguments): model, lengths, "
            "batch, recipe. MODEL and options go before what it says.",
        )
    add_options(parser, groups.ShapeOptions)
    infos = field_infos(Assumptions)
    add(
        "--assume",
        metavar="NAME[=VALUE]",
        action="append",
        help="what to take for values that a simulation does not have, where the model asks for some; may be repeated. "
        + " ".join(f"{name}: {info.doc}" for name, info in infos.items()).replace("%", "%%"),
    )


def named_model(args: argparse.Namespace) -> NamedModel:
    """Returns the model and the shape of its batch; loads the simulator."""
    from snugfit.simulator.request import NamedModel

    return NamedModel(
        spec=args.model,
        model_args=tuple(args.model_arg or ()),
        assume=assumptions_from(args.assume),
        **{name: getattr(args, name) for name in ("task", "image_size", "seq_len", "frames")},
    )


def recipe_fields() -> list[FieldInfo]:
    """Returns the fields of a recipe that have an option."""
    return [info for info in field_infos(Recipe).values() if info.name != "optimizer"]


def workload_fields() -> list[FieldInfo]:
    """Returns the fields of a workload that have an option."""
    return [info for info in field_infos(Workload).values() if info.name not in (*_TRAITS, *PYTHON_ONLY)]


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the recipe fields and training settings that were typed, by name."""
    return {**given_fields(args, recipe_fields(), "recipe_"), **given_fields(args, workload_fields(), "workload_")}


def given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the training settings that were typed."""
    return given_fields(args, workload_fields(), "workload_")


def take_processes(given: dict[str, Any]) -> dict[str, int]:
    """Takes out of typed fields how many processes a script is started in; empty where nobody said."""
    typed: dict[str, Any] = {name: given.pop(name) for name in ("gpus", "nodes") if name in given}
    workload = Workload.from_mapping(typed)
    return {"gpus": workload.gpus, "nodes": workload.nodes} if typed else {}


def check_script(args: argparse.Namespace, given: Iterable[str], *names: str) -> None:
    """Refuses options that say what a script says itself: fields that were given, those of shapes, and `names`."""
    shapes = ("model_arg", "task", "image_size", "frames", "seq_len")
    wrong = [*given, *(name for name in (*shapes, *names) if getattr(args, name))]
    if wrong:
        option = "--" + wrong[0].removesuffix("_file").replace("_", "-")
        raise InputError(
            f"{option} is for a model by name, and {args.model} is a script, which says that itself. Put the script's own "
            f"arguments behind its name: {args.model} ..."
        )


def given_fields(args: argparse.Namespace, infos: Iterable[FieldInfo], prefix: str) -> dict[str, Any]:
    """Returns those of some fields that were typed, converted to their types where possible."""
    found = {}
    for info in infos:
        value = getattr(args, prefix + info.name)
        if value is not None:
            found[info.name] = from_text(info, value) if isinstance(value, str) else value
    return found


def given_recipe(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the recipe fields that were typed as options."""
    return by_owner(given_options(args))[0]


def recipe_from(args: argparse.Namespace) -> Recipe:
    """Returns the file's recipe with the typed options on top; a `RecipeError` lists every mistake."""
    given = given_recipe(args)
    if args.recipe_file is None:
        return Recipe.from_mapping(given)
    return Recipe.from_yaml(args.recipe_file, **given)


def workload_from(args: argparse.Namespace) -> Workload:
    """Returns the typed training settings as a workload, without the model's traits."""
    workload = Workload.from_mapping({"batch_size": DEFAULT_BATCH_SIZE, **by_owner(given_options(args))[1]})
    check_weights_file(workload)
    return workload


def settings_from(args: argparse.Namespace) -> tuple[Recipe, Workload]:
    """Returns recipe and workload, with all mistakes in both and between them in one error."""
    run = Run.made_by(lambda: recipe_from(args), lambda: workload_from(args))
    return run.recipe, run.workload


def constraints_of(args: argparse.Namespace) -> Constraints:
    """Returns what a plan must keep to; typed recipe options and fields of a recipe file are pins."""
    if args.budget is not None:
        parse_bytes(args.budget, what="budget")
    given: dict[str, Any] = {}
    if getattr(args, "recipe_file", None) is not None:
        given.update(recipe_from(args).to_mapping(defaults=False))
    given.update(given_recipe(args))
    return constraints_from(
        allow=args.allow,
        pin=pins_of(args),
        forbid=bans_of(args),
        host_budget=args.host_budget,
        given=given,
        device=args.device,
    )


def pins_of(args: argparse.Namespace) -> dict[str, str]:
    """Returns what `--pin` gave: field -> text."""
    pins: dict[str, str] = {}
    for text in args.pin or ():
        name, sign, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not sign or not name or not value:
            raise InputError(f"--pin {text!r} is not understood; give FIELD=VALUE, for example --pin checkpoint=none.")
        if pins.setdefault(name, value) != value:
            problem = f"{name} is pinned to {value} and to {pins[name]}; give one of the two."
            raise RecipeError([problem], subject="pins and bans of the plan")
    return pins


def bans_of(args: argparse.Namespace) -> list[str]:
    """Returns the fields that `--forbid` gave."""
    return [name for text in args.forbid or () for name in text.split(",") if name.strip() or not text.strip(" ,")]


def _add_option(group: argparse._ArgumentGroup, info: FieldInfo, dest: str, default: Any) -> None:
    text = info.doc
    if default not in (None, False, ()):
        text += f" Default: {default}."
    text = text.replace("%", "%%")
    if info.kinds == (bool,):
        # A recipe file can have switched something on that an option must be able to switch off; "not said" is a third.
        if dest.startswith("recipe_") or info.optional:
            group.add_argument(info.option, dest=dest, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            # What is on by itself can be switched off, and the other way round.
            option = info.option.replace("--", "--no-", 1) if default else info.option
            what = f"Switches off: {text}" if default else text
            group.add_argument(option, dest=dest, action="store_const", const=not default, help=what)
        return
    # Values are not judged here, so that all mistakes can be told at once.
    metavar = "{" + ",".join(info.choices) + "}" if info.choices else _metavar(info)
    group.add_argument(info.option, dest=dest, metavar=metavar, help=text)


def _metavar(info: FieldInfo) -> str:
    if int in info.kinds:
        return "N"
    if float in info.kinds:
        return "X"
    return "X,X" if info.name == "betas" else "NAME"
