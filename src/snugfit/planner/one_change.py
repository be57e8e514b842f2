"""A plan with one field changed: as it was simulated, or composed from simulations that show that change alone.

Two simulations that differ in a field and in nothing else show what it does to each stretch of a step. The stretches of the
plan move by as much, and what grows with the samples in proportion to its microbatch. Other sizes of microbatch, and other
choices of blocks, are the difference of two compositions (`compose.py`). Imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from snugfit.planner.closeness import all_turned_back
from snugfit.planner.compose import ON_UPDATE, overhead
from snugfit.planner.probe import Probe
from snugfit.planner.profile import Row, StepProfile
from snugfit.planner.search import Search
from snugfit.planner.space import BY_BLOCK, SIZE, Space
from snugfit.recipe import Recipe
from snugfit.techniques import TECHNIQUES

_FOLLOWS = frozenset(field for row in TECHNIQUES if row.planning.follows is not None for field in row.fields)
_BLOCKS = tuple(field for field, _ in BY_BLOCK.values())
_SURELY = 1.25
"""Times the capacity from which on a composed recipe does not fit, however far composition is off."""


@dataclasses.dataclass(frozen=True, slots=True)
class Changed:
    """What a plan would take with one field changed."""

    recipe: Recipe
    """Its recipe."""
    need_bytes: int
    """The smallest memory in which it goes through."""
    seconds: float
    """Seconds of a step."""
    simulated: bool
    """Whether it was simulated; otherwise it is composed."""

    @property
    def source(self) -> str:
        """Where the numbers come from, in a word."""
        return "simulated" if self.simulated else "composed"


def differing(one: Recipe, other: Recipe) -> list[str]:
    """Returns the fields in which two recipes differ, those left out that follow from the rest."""
    return [name for name in one.to_mapping() if name not in _FOLLOWS and getattr(one, name) != getattr(other, name)]


def changed(search: Search, best: Probe, recipe: Recipe) -> Changed | None:
    """Returns what another recipe than the plan's takes; None where no simulation shows what the change does."""
    seen = search.simulations.probes.get(recipe)
    if seen is not None:
        return Changed(recipe, seen.need_bytes, seen.seconds, simulated=True)
    if best.recipe.compile != "none":
        return None
    names = differing(best.recipe, recipe)
    if not search.space.sharing_fields.isdisjoint(names):  # what that changes depends on where weights and state are
        return None
    if SIZE in names or not set(names).isdisjoint(_BLOCKS):
        mine, theirs = search.composed(best.recipe), search.composed(recipe)
        if mine is None or theirs is None:
            return None
        need, seconds = best.need_bytes * theirs[1] / mine[1], best.seconds + theirs[0] - mine[0]
        return Changed(recipe, round(need), seconds, simulated=False)
    pairs = list(_pairs(search.space, best, recipe, names))
    if not pairs:
        return None
    before, after = min(pairs, key=lambda pair: len(differing(pair[0].recipe, best.recipe)))
    share = _samples(search.space, best.recipe) / _samples(search.space, before.recipe)
    profile = _moved(best.profile, before.profile, after.profile, share)
    need = overhead(best) * profile.most_bytes
    return Changed(recipe, round(need), best.seconds + _slower(best, before, after), simulated=False)


def turned_back_that_may_fit(search: Search, best: Probe, capacity_bytes: int) -> Iterator[Recipe]:
    """Yields a plan with each of its fields turned back in turn, but for those of which composition tells enough."""
    for recipe in all_turned_back(search.space, best.recipe):
        composed = changed(search, best, recipe)
        if composed is None or composed.need_bytes <= _SURELY * capacity_bytes:
            yield recipe


def _pairs(space: Space, best: Probe, recipe: Recipe, names: list[str]) -> Iterator[tuple[Probe, Probe]]:
    """Simulations that differ as the plan and the recipe do; what blocks hold shows only where they are treated alike."""
    change = {name: getattr(recipe, name) for name in names}
    for before in space.usable():
        if any(getattr(before.recipe, name) != getattr(best.recipe, name) for name in names):
            continue
        after = space.seen(before.recipe.to_mapping(), change)
        alike = all(getattr(before.recipe, name) == getattr(best.recipe, name) for name in _BLOCKS)
        if after is not None and (alike or after.profile.saved_bytes == before.profile.saved_bytes):
            yield before, after


def _samples(space: Space, recipe: Recipe) -> int:
    return getattr(recipe, SIZE) or space.batch or 1


def _moved(profile: StepProfile, before: StepProfile, after: StepProfile, share: float) -> StepProfile:
    """A profile plus the difference of two others, of microbatches that are `share` as large."""
    shifted = profile.shifted(before, after)
    rows = dict(shifted.rows)
    for label, row in rows.items():
        if label in before.rows and label in after.rows:
            more = share * (after.rows[label].other_bytes - before.rows[label].other_bytes)
            rows[label] = Row(row.fixed_bytes, row.gradient_bytes, max(round(row.other_bytes + more), 0), row.open)
    return dataclasses.replace(shifted, rows=rows)


def _slower(best: Probe, before: Probe, after: Probe) -> float:
    """The seconds that a change adds to a step of the plan: to its passes in proportion, to its update as they are."""
    ends = [probe.timing.phase_seconds.get(ON_UPDATE, 0.0) for probe in (best, before, after)]
    passes = [probe.seconds - end for probe, end in zip((best, before, after), ends, strict=True)]
    # An update that moves into backward is as long there, whatever else the passes do.
    moves = before.recipe.step_in_backward != after.recipe.step_in_backward
    in_proportion = 1.0 if moves else passes[0] / max(passes[1], 1e-12)
    return (passes[2] - passes[1]) * in_proportion + ends[2] - ends[1]
