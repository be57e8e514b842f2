"""What `prepare` and `apply` are given, checked: a recipe or a plan, a model that can be changed, a place for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from snugfit.device_kinds import CPU, CUDA, is_there
from snugfit.errors import InputError
from snugfit.recipe import Recipe
from snugfit.techniques.init.late import is_awaited


class HasRecipe(Protocol):
    """What training needs of a planner's result; `fallbacks` (recipes) may be missing."""

    @property
    def recipe(self) -> Recipe:
        """How the step is held in memory."""


def candidates_of(plan: Any) -> list[tuple[Recipe, float]]:
    """Returns the recipes that a run by a plan may time, with their predicted seconds: the plan's own first.

    Raises:
        InputError: It is no plan.
    """
    if not hasattr(plan, "rivals"):
        raise InputError(
            "tune=True times the rivals that a plan names, and no plan is given. Give what snugfit.plan returns, or leave "
            "tune out."
        )
    return [(plan.recipe, plan.step_seconds), *((one.recipe, one.step_seconds) for one in plan.rivals)]


def recipe_and_fallbacks(given: Any, fallbacks: Iterable[Recipe] | None) -> tuple[Recipe, tuple[Recipe, ...]]:
    """Returns the recipe in what was given (recipe, plan, None), and the fallbacks: `fallbacks`, or the plan's."""
    recipe = Recipe() if given is None else getattr(given, "recipe", given)
    if not isinstance(recipe, Recipe):
        raise InputError(
            f"recipe is a {type(given).__name__}; give a snugfit.Recipe, or a plan that has one "
            "(Recipe.from_yaml reads a file)."
        )
    if fallbacks is None:
        fallbacks = getattr(given, "fallbacks", None) or ()
    others = tuple(fallbacks) if isinstance(fallbacks, Iterable) else (fallbacks,)
    for one in others:
        if not isinstance(one, Recipe):
            raise InputError(f"fallbacks has a {type(one).__name__}; give recipes, such as [Recipe(checkpoint='all')].")
    return recipe, others


def check_lazy(model: nn.Module, recipe: Recipe) -> None:
    """Refuses techniques on lazy layers that have no shape yet; without techniques torch gives them one in place."""
    waiting = [name for name, weight in model.named_parameters() if is_lazy(weight)]
    buffers = [name for name, buffer in model.named_buffers() if is_lazy(buffer)]
    if buffers or (waiting and recipe != Recipe()):
        raise InputError(
            f"{(buffers or waiting)[0]!r} is lazy and has no shape yet. Call the model on one batch (under torch.no_grad()) "
            "before you prepare it."
        )


def place_of(device: torch.device | str | None, model: nn.Module, *, waits: bool = False) -> torch.device:
    """Returns where to train; `InputError` where the device is not there or the model has no weights.

    `device`: what was asked for; None: a CUDA device where there is one, otherwise where the model is.
    `waits`: whether what has no memory waits for the values of another process; otherwise it is refused.
    """
    tensors = [
        one for one in (*model.parameters(), *model.buffers()) if not (waits and one.is_meta) and not is_awaited(one)
    ]
    if device is None:
        if is_there(CUDA):
            return torch.device(CUDA)
        place = tensors[0].device if tensors else torch.device(CPU)
    else:
        try:
            place = torch.device(device)
            torch.empty(0, device=place)
        except (RuntimeError, AssertionError, TypeError) as error:
            raise InputError(
                f"device {str(device)!r} is not there. Give one that this machine and this torch have, such as "
                f"{'cpu or cuda' if is_there(CUDA) else CPU}."
            ) from error
    if place.type == "meta" or any(tensor.is_meta for tensor in tensors):
        raise InputError(
            "the model is on the meta device and has no weights to train. Build it on the host or the device, or give it "
            "memory first (model.to_empty(device=...), then load its weights)."
        )
    return place
