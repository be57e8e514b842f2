"""Recipes that a run may change over to, each with less memory than the one before it, as little slower as possible."""

from __future__ import annotations

from collections.abc import Iterable

from snugfit.recipe import Recipe
from snugfit.training.changeable import problems_of_change
from snugfit.workload import Workload

LESS = 0.97
"""A fallback needs at most this part of what the one before it needs."""
Known = tuple[float, int, Recipe]
"""Seconds of a step, bytes that it needs, and the recipe."""


def may_follow(recipe: Recipe, other: Recipe, workload: Workload) -> bool:
    """Returns whether a run by a recipe may go on with another one."""
    return next(problems_of_change(recipe, other, workload), None) is None


def ever_leaner(
    known: Iterable[Known], recipe: Recipe, need_bytes: int, workload: Workload, *, less: float = LESS
) -> tuple[Recipe, ...]:
    """Returns the fastest that needs less than a run's recipe, then the fastest that needs less than that one, and so on."""
    kept: list[Recipe] = []
    for _, need, other in sorted(known, key=lambda one: one[:2]):
        if need <= less * need_bytes and may_follow(recipe, other, workload):
            kept.append(other)
            need_bytes = need
    return tuple(kept)
