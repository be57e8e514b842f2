"""Recipe and training settings as options, made from the fields themselves; imports no torch.

`--optimizer` names the workload's optimizer; one with low-bit state (adamw8bit) is the workload's adamw, held by the recipe
in fewer bits. A recipe's replacement by another algorithm stands in the recipe file, where it is labelled.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from snugfit.cli import output
from snugfit.errors import InputError, RecipeError
from snugfit.fake_device.assumptions import Assumptions
from snugfit.fidelity import contradictions
from snugfit.fields import FieldInfo, field_infos, from_text
from snugfit.recipe import Recipe
from snugfit.workload import Workload, algorithm_and_storage

TRAITS = ("batch_norm", "dropout")
"""Fields of the workload that are read off the model."""

PYTHON_ONLY = ("keep_gradients",)
"""Fields of the workload that make no difference to a run from the command line."""

DEFAULT_BATCH_SIZE = 64

TASKS_HELP = (
    "what is learned: image-classification, text-classification, causal-lm, masked-lm, seq2seq-lm, token-classification, "
    "question-answering, contrastive, semantic-segmentation, object-detection, video-classification, speech-to-text, ctc, "
    "audio-classification or image-text-to-text. Default: what the model is for."
)
"""Help of `--task`; a test compares it with the tasks that there are."""


def add_recipe_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--recipe` and an option for each field of `Recipe`.

    Args:
        parser: The subcommand's parser.
    """
    group = parser.add_argument_group("recipe: how the step is held in memory")
    group.add_argument(
        "--recipe",
        metavar="FILE",
        dest="recipe_file",
        type=output.some_path,
        help="YAML file of `field: value` lines; the options below go before it.",
    )
    for info in recipe_fields():
        _add_option(group, info, f"recipe_{info.name}", info.default)


def add_workload_options(parser: argparse.ArgumentParser) -> None:
    """Adds an option for each field of `Workload`, the traits of the model left out.

    Args:
        parser: The subcommand's parser.
    """
    group = parser.add_argument_group("training settings: what is learned")
    for info in workload_fields():
        default = DEFAULT_BATCH_SIZE if info.name == "batch_size" else info.default
        _add_option(group, info, f"workload_{info.name}", default)


def add_assume_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--assume`.

    Args:
        parser: The subcommand's parser.
    """
    infos = field_infos(Assumptions)
    parser.add_argument(
        "--assume",
        metavar="NAME[=VALUE]",
        action="append",
        help="what to take for values that a simulation does not have, where the model asks for some; may be repeated. "
        + " ".join(f"{name}: {info.doc}" for name, info in infos.items()).replace("%", "%%"),
    )


def recipe_fields() -> list[FieldInfo]:
    """Returns the fields of a recipe that have an option."""
    return [info for info in field_infos(Recipe).values() if info.name != "optimizer"]


def workload_fields() -> list[FieldInfo]:
    """Returns the fields of a workload that have an option."""
    return [info for info in field_infos(Workload).values() if info.name not in (*TRAITS, *PYTHON_ONLY)]


def given_workload(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the training settings that were typed.

    Args:
        args: What the command line gave.

    Returns:
        Field name -> value; only options that were given.
    """
    given = _given(args, workload_fields(), "workload_")
    if "optimizer" in given:
        given["optimizer"] = algorithm_and_storage(given["optimizer"])[0]
    return given


def given_recipe(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the recipe fields that were typed as options.

    Args:
        args: What the command line gave.

    Returns:
        Field name -> value; only options that were given.
    """
    given = _given(args, recipe_fields(), "recipe_")
    if args.workload_optimizer is not None:
        storage = algorithm_and_storage(args.workload_optimizer)[1]
        if storage is not None:
            given["optimizer"] = storage
    return given


def recipe_from(args: argparse.Namespace) -> Recipe:
    """Returns the recipe of a command line: the file's, with the options before it.

    Args:
        args: What the command line gave.

    Returns:
        The recipe.

    Raises:
        InputError: The file cannot be read.
        RecipeError: Listing every mistake in the file and the options.
    """
    given = given_recipe(args)
    if args.recipe_file is None:
        return Recipe.from_mapping(given)
    return Recipe.from_yaml(args.recipe_file, **given)


def workload_from(args: argparse.Namespace) -> Workload:
    """Returns the training settings of a command line.

    Args:
        args: What the command line gave.

    Returns:
        The workload, without the traits of the model.

    Raises:
        RecipeError: Listing every mistake.
        InputError: The file of weights does not exist.
    """
    workload = Workload.from_mapping({"batch_size": DEFAULT_BATCH_SIZE, **given_workload(args)})
    weights = workload.weights
    # Also where no weight is read: an estimate of a training that could not begin is of no use.
    if weights is not None and weights.endswith(".safetensors") and not Path(weights).expanduser().is_file():
        raise InputError(f"weights file {weights!r} does not exist. Give an existing .safetensors file.")
    return workload


def settings_from(args: argparse.Namespace) -> tuple[Recipe, Workload]:
    """Returns recipe and training settings, with the mistakes of both, and between them, in one error.

    Args:
        args: What the command line gave.

    Returns:
        Recipe and workload.

    Raises:
        InputError: The recipe file cannot be read.
        RecipeError: Listing every mistake.
    """
    made: list[Any] = []
    errors: list[RecipeError] = []
    for make in (recipe_from, workload_from):
        try:
            made.append(make(args))
        except RecipeError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        problems = [problem for error in errors for problem in error.problems]
        raise RecipeError(problems, subject="recipe and training settings")
    recipe, workload = made
    between = list(contradictions(recipe, workload))
    if between:
        raise RecipeError(between, subject="recipe against training settings")
    return recipe, workload


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


def _given(args: argparse.Namespace, infos: Iterable[FieldInfo], prefix: str) -> dict[str, Any]:
    found = {}
    for info in infos:
        value = getattr(args, prefix + info.name)
        if value is not None:
            found[info.name] = from_text(info, value) if isinstance(value, str) else value
    return found
