"""Does a plan hold once it is prepared? A step by its recipe, then one by each of its fallbacks, beside plain training.

Every plan of every test and benchmark goes through here: the advertised path is plan, then prepare, then steps, and a
fallback that the run cannot change over to is worth nothing when memory runs out.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from snugfit.planner.plan import Plan
from snugfit.recipe import Recipe

SEED = 5


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Leaves the caller's random state as it was, and says nothing of fields without effect."""
    with torch.random.fork_rng(devices=()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def losses_of(
    model: nn.Module, plan: Plan | None, batch: Any, arguments: Mapping[str, Any], steps: int | None = None
) -> list[tuple[Recipe, float]]:
    """Trains a copy of a model: a step by the plan's recipe, then, changing over in the middle of the run, by each fallback.

    Args:
        model: The model, which stays as it is.
        plan: The plan; None: plain training.
        batch: The batch of every step.
        arguments: The other arguments of `snugfit.prepare`.
        steps: Steps of plain training.

    Returns:
        Recipe of each step, and its loss.

    Raises:
        SnugfitError: The plan cannot be prepared, or a fallback not be changed over to.
    """
    from snugfit.training.prepare import prepare

    with quietly():
        given = {**arguments, "device": arguments.get("device", "cpu")}
        recipe = Recipe() if plan is None else plan.recipe
        fallbacks = () if plan is None else plan.fallbacks
        trainer = prepare(copy.deepcopy(model), recipe, fallbacks=fallbacks, **given)
        found = []
        for turn in range(1 + (len(fallbacks) if plan is not None else (steps or 1) - 1)):
            if plan is not None and turn:
                trainer.change_recipe(fallbacks[turn - 1])
            torch.manual_seed(SEED + turn)
            loss = float(trainer.step(batch))
            found.append((trainer.recipe, loss))
        trainer.finish()
    wanted = [recipe, *(fallbacks if plan is not None else [recipe] * (len(found) - 1))]
    assert [one for one, _ in found] == wanted, "the run went on with another recipe"
    return found


def check_prepared(
    model: nn.Module | Callable[[], nn.Module],
    plan: Plan,
    batch: Any,
    arguments: Mapping[str, Any],
    *,
    tolerance: float = 1e-4,
) -> dict[str, Any]:
    """Prepares a plan and takes a step by its recipe and by each fallback.

    Where all of them are exact, the losses must be those of plain training.

    Args:
        model: The model, or what builds it.
        plan: The plan.
        batch: A real batch.
        arguments: The other arguments of `snugfit.prepare`.
        tolerance: Most that a loss may differ, as a part of it.

    Returns:
        `recipe`, `fallbacks`, `losses`, and `plain_losses` and `worst_difference` where all recipes are exact.

    Raises:
        AssertionError: A loss is another one.
        SnugfitError: The plan cannot be prepared, or a fallback not be changed over to.
    """
    if not isinstance(model, nn.Module):
        with quietly():
            torch.manual_seed(SEED)
            model = model()
    steps = losses_of(model, plan, batch, arguments)
    row: dict[str, Any] = {
        "recipe": plan.recipe.to_mapping(defaults=False),
        "fallbacks": [one.to_mapping(defaults=False) for one in plan.fallbacks],
        "losses": [loss for _, loss in steps],
    }
    if plan.fidelity.level != "exact":
        return row
    plain = [loss for _, loss in losses_of(model, None, batch, arguments, steps=len(steps))]
    worst = max(abs(one - other) / max(abs(other), 1e-3) for one, other in zip(row["losses"], plain, strict=True))
    row |= {"plain_losses": plain, "worst_difference": worst}
    assert worst <= tolerance, f"losses {row['losses']} by {row['recipe']} and {row['fallbacks']}; plain: {plain}"
    return row
