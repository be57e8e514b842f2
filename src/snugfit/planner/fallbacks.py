"""Fallbacks of a plan: what a run changes over to where it needs more than was predicted.

A fallback needs less memory than the one before it, as little slower as possible, and may follow the plan's recipe in the
middle of a run. Whether it may is asked of training's own rule (`training/changeable.py`). Other recipes that the search
has simulated lend the fields that may change; where that leaves too few, the plan's own recipe is turned up. All of them
are simulated. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from snugfit.errors import RecipeError
from snugfit.planner.leaner import LESS, ever_leaner, may_follow
from snugfit.planner.probe import AT_ONCE, Probe
from snugfit.planner.search import Search
from snugfit.planner.space import SIZE, Space
from snugfit.recipe import Recipe
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.planning import Changes
from snugfit.training.changeable import CHANGEABLE

ANY_LESS = 0.995
"""Where no fallback needs as little as `LESS` says, one will do that needs at most this part."""
ENOUGH = 2
"""With fewer fallbacks among what was simulated, the plan's recipe is turned up."""
_SHARES = (0.85, 0.6)
"""Parts of what the plan needs for which a fallback is composed."""
MOST_LENT = 8
"""Recipes that are simulated because another one lends its fields, at most."""
_SAVING: list[Changes] = [
    one.changes
    for row in TECHNIQUES
    if row.may_change and row.planning.least is not None
    for one in (*row.planning.choices[1:], row.planning.least)
]
"""What may be chosen in the middle of a run, of each technique what needs the least last; smaller microbatches come beside.
A first choice that does not need the least is milder than what a fallback is for."""


def fallbacks_of(search: Search, best: Probe) -> tuple[Recipe, ...]:
    """Returns the fallbacks of a plan.

    Recipes, each needing less memory than the one before; none where nothing needs less than the plan.
    """
    space = search.space
    for more in (composed_fallbacks, _lent, _turned_up):
        wanted = list(more(search, best)) if len(_chain(space, best)) < ENOUGH else []
        for first in range(0, len(wanted), AT_ONCE):
            space.simulations.simulate(wanted[first : first + AT_ONCE], ahead=wanted[first + AT_ONCE :])
            if len(_chain(space, best)) >= ENOUGH:
                break
    return _chain(space, best) or _chain(space, best, less=ANY_LESS)


def composed_fallbacks(search: Search, best: Probe) -> Iterator[Recipe]:
    """Yields recipes that promise to fit into less and that a run by the plan may change over to."""

    def follows(recipe: Recipe) -> bool:
        return may_follow(best.recipe, recipe, search.space.workload)

    for share in _SHARES if best.recipe.compile == "none" else ():
        found = search.promising(int(share * best.need_bytes), follows)
        if found is not None:
            yield found.recipe


def _lent(search: Search, best: Probe) -> list[Recipe]:
    """The plan's recipe with those fields of leaner recipes that may change in a run."""
    space = search.space
    found: dict[Recipe, None] = {}
    for other in sorted(space.usable(), key=lambda one: (one.seconds, one.need_bytes)):
        if other.need_bytes >= best.need_bytes:
            continue
        try:
            recipe = best.recipe.replace(**{name: getattr(other.recipe, name) for name in CHANGEABLE})
        except RecipeError:  # they do not go with the fields that stay
            continue
        refused = space.constraints.refusal(recipe, space.workload) is not None
        if recipe not in space.simulations.probes and not refused and may_follow(best.recipe, recipe, space.workload):
            found[recipe] = None
    return list(found)[:MOST_LENT]


def _chain(space: Space, best: Probe, *, less: float = LESS) -> tuple[Recipe, ...]:
    known = ((probe.seconds, probe.need_bytes, probe.recipe) for probe in space.usable())
    return ever_leaner(known, best.recipe, best.need_bytes, space.workload, less=less)


def _turned_up(search: Search, best: Probe) -> Iterator[Recipe]:
    """The plan's recipe with more of everything that saves memory: each alone, smaller microbatches, all together."""
    space = search.space
    own = best.recipe.to_mapping()
    saving = space.effective(_SAVING)
    sizes: list[Changes] = [{SIZE: size} for size in _smaller(space, best.recipe)]
    everything: dict[str, object] = {}
    for change in (*saving, *sizes[-1:]):
        if space.allowed(own, everything, change):
            everything.update(change)
    for change in (*saving, *sizes, everything):
        yield from space.allowed(own, change)


def _smaller(space: Space, recipe: Recipe) -> Iterable[int]:
    """A half and a quarter of the microbatch, and one sample."""
    size = getattr(recipe, SIZE) or space.batch
    if size is None or SIZE in space.constraints.pins:
        return ()
    return sorted({max(size // 2, 1), max(size // 4, 1), 1} - {size}, reverse=True)
