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
from snugfit.workload import CUSTOM_OPTIMIZER, Workload, algorithm_and_storage


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """What is learned, and how it is held in memory; the two do not contradict each other.

    Raises:
        RecipeError: Listing every contradiction.
    """

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
        """Makes both parts, with the mistakes of both in one error.

        Args:
            recipe: Makes the recipe.
            workload: Makes the workload.

        Raises:
            RecipeError: Listing every mistake in both; or, where there is none, every contradiction between them.
        """
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
        """Returns whether a recipe can train a workload.

        Args:
            recipe: How the step is held in memory.
            workload: What is learned.
        """
        return next(contradictions(recipe, workload), None) is None


def by_owner(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tells the fields of a recipe from training settings.

    `optimizer` names the workload's; one with low-bit state (adamw8bit) is the workload's adamw, held by the recipe in
    fewer bits.

    Args:
        options: Field -> value.

    Returns:
        Fields of the recipe, and of the workload; names that neither has are left with the workload, which refuses them.
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
    """Checks that the file of weights is there, also where none is read: an estimate of what cannot begin is of no use.

    Args:
        workload: What is learned.

    Raises:
        InputError: The file does not exist.
    """
    weights = workload.weights
    if weights is not None and weights.endswith(".safetensors") and not Path(weights).expanduser().is_file():
        raise InputError(f"weights file {weights!r} does not exist. Give an existing .safetensors file.")


def contradictions(recipe: Recipe, workload: Workload) -> Iterator[str]:
    """Yields a sentence for each way in which a recipe cannot train a workload.

    Args:
        recipe: How the step is held in memory.
        workload: What is learned.

    Yields:
        What contradicts what, and what to do.
    """
    size, batch = recipe.microbatch_size, workload.batch_size
    if size is not None and batch is not None and size > batch:
        yield f"microbatch_size {size} is larger than the batch of {batch}; give at most {batch}."
    if recipe.step_in_backward:
        if splits(recipe, workload):
            yield (
                f"step_in_backward contradicts accumulation: microbatches of {size} in a batch of {batch or 'unknown size'} "
                "add up their gradients, and this frees each gradient at once. Leave one of them out, or make the batch "
                "as small as the microbatch (another batch: different)."
            )
        if workload.clip_norm is not None:
            yield (
                "step_in_backward contradicts clip_norm: the global norm is known only when all gradients are. "
                "Leave one of them out."
            )
        if workload.keep_gradients:
            yield (
                "step_in_backward contradicts keep_gradients: it frees each gradient as soon as it is used, so none is left "
                "to look at. Leave one of them out."
            )
    optimizer = recipe.optimizer or workload.optimizer
    if optimizer == CUSTOM_OPTIMIZER:
        for name in ("step_in_backward", "offload_optimizer", "stochastic_rounding"):
            if getattr(recipe, name):
                yield (
                    f"{name} builds an optimizer for each parameter and needs one by name, or an instance of torch's Adam, "
                    "AdamW, SGD or Adafactor, not the one given."
                )
        if recipe.optimizer_impl is not None:
            yield "optimizer_impl applies to optimizers given by name; choose the kernels in the function or instance given."
    if recipe.optimizer is None:
        if recipe.offload_optimizer and optimizer == "adafactor":
            yield "offload_optimizer takes adam, adamw or sgd; adafactor's state is so small that moving it saves nothing."
        if recipe.offload_optimizer and optimizer == "muon":
            yield "offload_optimizer takes adam, adamw or sgd; muon multiplies matrices, which is slow on the host."
        if recipe.optimizer_impl == "fused" and optimizer == "adafactor":
            yield "optimizer_impl='fused': torch has no fused kernel for adafactor. Use foreach or for-loop."
        if recipe.optimizer_impl is not None and optimizer == "muon":
            yield "optimizer_impl chooses among torch's kernels, and muon has its own. Leave it out."


def splits(recipe: Recipe, workload: Workload) -> bool:
    """Returns whether the recipe cuts the workload's batch into several microbatches (yes where its size is unknown).

    Args:
        recipe: How the step is held in memory.
        workload: What is learned.

    Returns:
        Whether gradients of several passes add up.
    """
    size = recipe.microbatch_size
    return size is not None and (workload.batch_size is None or size < workload.batch_size)
