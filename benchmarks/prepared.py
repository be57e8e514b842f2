"""Does a plan hold once it is prepared? A step by its recipe, then one by each of its fallbacks, beside plain training.

Every plan of every test and benchmark goes through here: the advertised path is plan, then prepare, then steps, and a
fallback that the run cannot change over to is worth nothing when memory runs out.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from snugfit.planner.plan_result import Plan
from snugfit.recipe import Recipe

SEED = 5


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Leaves the caller's random state as it was, and says nothing of fields without effect."""
    with torch.random.fork_rng(devices=()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def losses_of(
    build: Callable[[], nn.Module],
    recipe: Recipe,
    fallbacks: Sequence[Recipe],
    batch: Any,
    arguments: Mapping[str, Any],
    *,
    device: Any = "cpu",
) -> list[float]:
    """Trains a model: a step by a recipe, then, changing over in the middle of the run, one by each fallback.

    Args:
        build: Builds the model.
        recipe: The first recipe.
        fallbacks: The next ones.
        batch: The batch of every step.
        arguments: The other arguments of `snugfit.prepare`.
        device: Where to train.

    Returns:
        The loss of each step.

    Raises:
        SnugfitError: The recipe cannot be prepared, or a fallback not be changed over to.
    """
    from snugfit.training.prepare import prepare

    with quietly():
        torch.manual_seed(SEED)
        trainer = prepare(build(), recipe, fallbacks=fallbacks, device=device, **arguments)
        losses = []
        for turn, one in enumerate((recipe, *fallbacks)):
            trainer.change_recipe(one)
            torch.manual_seed(SEED + turn)  # the same masks, whatever was drawn before
            losses.append(float(trainer.step(batch)))
            assert trainer.recipe == one, f"the run went on with {trainer.recipe} in place of {one}"
        trainer.finish()
    return losses


def check_prepared(
    build: Callable[[], nn.Module],
    plan: Plan,
    batch: Any,
    arguments: Mapping[str, Any],
    *,
    device: Any = "cpu",
    tolerance: float = 1e-4,
) -> dict[str, Any]:
    """Prepares a plan and takes a step by its recipe and by each fallback.

    Where all of them are exact, the losses must be those of plain training.

    Args:
        build: Builds the model.
        plan: The plan.
        batch: A real batch.
        arguments: The other arguments of `snugfit.prepare`.
        device: Where to train.
        tolerance: Most that a loss may differ, as a part of it.

    Returns:
        `recipe`, `fallbacks`, `losses`, and `plain_losses` and `worst_difference` where all recipes are exact.

    Raises:
        AssertionError: A loss is another one.
        SnugfitError: The plan cannot be prepared, or a fallback not be changed over to.
    """
    losses = losses_of(build, plan.recipe, plan.fallbacks, batch, arguments, device=device)
    row: dict[str, Any] = {
        "recipe": plan.recipe.to_mapping(defaults=False),
        "fallbacks": [one.to_mapping(defaults=False) for one in plan.fallbacks],
        "losses": losses,
    }
    if plan.fidelity.level != "exact":
        return row
    plain = losses_of(build, Recipe(), [Recipe()] * len(plan.fallbacks), batch, arguments, device=device)
    worst = max(abs(one - other) / max(abs(other), 1e-3) for one, other in zip(losses, plain, strict=True))
    row |= {"plain_losses": plain, "worst_difference": worst}
    assert worst <= tolerance, f"losses {losses} by {row['recipe']} and {row['fallbacks']}; plain: {plain}"
    return row
