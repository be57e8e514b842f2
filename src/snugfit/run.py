"""A run: a recipe and a workload that go together. Imports no torch.

`Run(recipe, workload)` is the one place where the two meet: it is checked when it is made, so whoever holds one need not
ask.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from snugfit.errors import InputError, RecipeError
from snugfit.fields import field_infos
from snugfit.recipe import Recipe
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.declaration import said
from snugfit.workload import CUSTOM_OPTIMIZER, Workload, algorithm_and_storage


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A recipe and a workload that do not contradict each other; making one raises a `RecipeError` if they do."""

    recipe: Recipe
    """How the step is held in memory."""
    workload: Workload
    """What is learned."""

    def __post_init__(self) -> None:
        problems = list(contradictions(self.recipe, self.workload))
        if problems:
            raise RecipeError(problems, subject="recipe against training settings")

    @classmethod
    def made_by(cls, recipe: Callable[[], Recipe], workload: Callable[[], Workload]) -> Run:
        """Makes both parts by functions, with the mistakes of both, or else the contradictions, in one error."""
        made: list[Recipe | Workload] = []
        errors: list[RecipeError] = []
        for make in (recipe, workload):
            try:
                made.append(make())
            except RecipeError as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            problems = [problem for error in errors for problem in error.problems]
            raise RecipeError(problems, subject="recipe and training settings")
        return cls(*made)  # type: ignore[arg-type]

    @staticmethod
    def is_possible(recipe: Recipe, workload: Workload) -> bool:
        """Returns whether a recipe can train a workload."""
        return next(contradictions(recipe, workload), None) is None


def by_owner(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separates recipe fields from training settings.

    `optimizer` names the workload's; one with low-bit state (adamw8bit) is the workload's adamw, held by the recipe in
    fewer bits.

    Returns fields of the recipe, and of the workload; names that neither has are left with the workload, which refuses
    them.
    """
    recipe, workload = dict[str, Any](), dict[str, Any]()
    for name, value in options.items():
        if name == "optimizer" and isinstance(value, str):
            workload[name], storage = algorithm_and_storage(value)
            if storage is not None:
                recipe[name] = storage
        else:
            (recipe if name in field_infos(Recipe) else workload)[name] = value
    return recipe, workload


def check_weights_file(workload: Workload) -> None:
    """Raises `InputError` if the file of weights is missing, also in an estimate, which does not read it."""
    weights = workload.weights
    if weights is not None and weights.endswith(".safetensors") and not Path(weights).expanduser().is_file():
        raise InputError(f"weights file {weights!r} does not exist. Give an existing .safetensors file.")


def contradictions(recipe: Recipe, workload: Workload) -> Iterator[str]:
    """Yields a sentence for each way in which a recipe cannot train a workload: what contradicts what, what to do."""
    for row in TECHNIQUES:
        yield from said(row.misfits, recipe, workload)
    if (recipe.optimizer or workload.optimizer) != CUSTOM_OPTIMIZER:
        return
    for name in (technique.name for technique in TECHNIQUES if technique.updated_by):
        if getattr(recipe, name):
            yield (
                f"{name} builds an optimizer for each parameter and needs one by name, or an instance of torch's Adam, "
                "AdamW, SGD or Adafactor, not the one given."
            )
    if recipe.optimizer_impl is not None:
        yield "optimizer_impl applies to optimizers given by name; choose the kernels in the function or instance given."
