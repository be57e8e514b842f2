"""Of recipes that take nearly the same time, the one closer to plain training; and a plan with one field turned back.

Closer is what gives up less fidelity (exact before rounding before different), of two of the same fidelity what is
declared first (8 bits before 4), and then what has fewer fields on. Imports no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from snugfit.fidelity import fidelity
from snugfit.fields import field_infos
from snugfit.planner.probe import Probe
from snugfit.planner.space import Space, choices_of
from snugfit.recipe import Recipe
from snugfit.techniques.planning import Changes
from snugfit.workload import Workload

NEARLY = 1.01
"""Recipes within this of the fastest are as good as it."""
Farness = tuple[int, int, int, int]
"""Fields that are different, fields that round, places of their values among the words of the fields, fields that are on."""


def farness(recipe: Recipe, workload: Workload) -> Farness:
    """Returns a sort key for how far a recipe is from plain training; smaller is closer."""
    lowered, infos = fidelity(recipe, workload).reasons, field_infos(Recipe)
    levels = [level for level, _ in lowered.values()]
    values = {name: getattr(recipe, name) for name in lowered if name in infos}
    places = sum(infos[name].choices.index(value) for name, value in values.items() if value in infos[name].choices)
    return levels.count("different"), levels.count("rounding"), places, len(fields_on(recipe))


def fields_on(recipe: Recipe) -> list[str]:
    """Returns the fields that differ from plain training."""
    plain = Recipe()
    return [name for name in field_infos(Recipe) if getattr(recipe, name) != getattr(plain, name)]


def closest(probes: Iterable[Probe], workload: Workload) -> Probe | None:
    """Returns the closest to plain training of the fastest probe and those that take nearly the same time."""
    known = list(probes)
    limit = NEARLY * min((probe.seconds for probe in known), default=0.0)
    near = [probe for probe in known if probe.seconds <= limit]
    return min(near, key=lambda one: (farness(one.recipe, workload), one.seconds, one.need_bytes), default=None)


def with_room(space: Space, recipe: Recipe, change: Changes) -> Changes | None:
    """Returns a change to a recipe, with up to two fields turned back to plain training where they stand in its way.

    None where a plan may not have it, because of a pin, or whatever is turned back.
    """
    plain, own = Recipe().to_mapping(), recipe.to_mapping()
    others = [(name,) for name in fields_on(recipe) if name not in change]
    pairs = itertools.combinations([name for (name,) in others], 2)
    for names in itertools.chain([()], others, pairs):
        found = {**change, **{name: plain[name] for name in names}}
        if space.allowed(own, found):
            return found
    return None


def turned_back(space: Space, recipe: Recipe, name: str) -> Recipe | None:
    """Returns a recipe with one field as in plain training, and with it the fields that depend on it.

    The recipe; None where a plan may not have it, because of a pin, or because the field belongs to another one.
    """
    change = with_room(space, recipe, {name: getattr(Recipe(), name)})
    for made in () if change is None else space.allowed(recipe.to_mapping(), change):
        return made if made != recipe and _offered(space, made) else None
    return None


def all_turned_back(space: Space, recipe: Recipe) -> Iterator[Recipe]:
    """Yields a recipe with each of its fields turned back in turn, where that is allowed."""
    for name in fields_on(recipe):
        made = turned_back(space, recipe, name)
        if made is not None:
            yield made


def _offered(space: Space, recipe: Recipe) -> bool:
    """Whether a plan could make this recipe: of fields that are only chosen together, it has all or none."""
    for name in filter(space.constraints.is_free, fields_on(recipe)):
        mine = [change for change in choices_of("passes", "update") if change.get(name) == getattr(recipe, name)]
        if mine and not any(all(getattr(recipe, field) == value for field, value in one.items()) for one in mine):
            return False
    return True
