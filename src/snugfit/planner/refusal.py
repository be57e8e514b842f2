"""What is said where nothing fits: which limits stand in the way, the least that would do, and what to do about each.

A limit stands in the way where a recipe that was simulated fits without it: the host's memory, a pin, a ban, fidelity; the
device's own memory where none of these does. Each is lifted alone, and only the recipes that save everything at once are
simulated for it, so that an answer takes a small part of a search.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from snugfit.errors import DoesNotFitError, RecipeError, argument
from snugfit.fields import as_typed
from snugfit.planner.constraints import Constraints
from snugfit.planner.elsewhere import ways_elsewhere
from snugfit.planner.margin import Margin
from snugfit.planner.other_cards import may_be_shared, other_cards
from snugfit.planner.probe import Place, Probe
from snugfit.planner.smallest import Smallest
from snugfit.planner.space import Space
from snugfit.recipe import Recipe
from snugfit.report.estimate_card import where_in_words
from snugfit.report.words import recipe_in_words
from snugfit.simulator.prediction import Estimate
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.batch_share import at_once
from snugfit.techniques.levels import LEVELS, Level
from snugfit.techniques.planning import UNCALLED
from snugfit.units import MIB, format_bytes

_MOST_LIFTED = 4
"""Pins and bans that are lifted one by one."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """What would let the work fit, and what to type for it."""

    limit: str
    """What stands in the way."""
    instead: str
    """What to give in its place."""
    recipe: Recipe
    """What fits then, as simulated."""

    def __str__(self) -> str:
        return f"{self.instead}: {recipe_in_words(self.recipe)}"


class Refusal:
    """Looks for what would let the work fit."""

    def __init__(self, space: Space, capacity_bytes: int, leanest: Callable[[Level], Probe | None]) -> None:
        """Starts with what was simulated; `leanest` finds the least memory at a level of fidelity."""
        self.space, self.capacity_bytes = space, capacity_bytes
        self._leanest = leanest
        self.allowed = self.space.constraints.widest

    def smallest(self) -> dict[Level, Probe]:
        """Returns the leanest recipe at each level of fidelity, from the allowed one on."""
        found = {level: self._leanest(level) for level in LEVELS[LEVELS.index(self.allowed) :]}
        return {level: probe for level, probe in found.items() if probe is not None}

    def remedies(self) -> list[Remedy]:
        """Returns the limits that stand in the way, each lifted alone, the smallest change first; or two at once."""
        alone = [*self._more_host(), *self._without_pins_and_bans(), *self._less_fidelity()]
        return alone or list(self._pins_with_less_fidelity())

    def _fitting(self, space: Space, lowest: Level = LEVELS[0]) -> list[Probe]:
        """What fits of all that is simulated by now, and of the recipes that save everything at once, from a level on."""
        Smallest(space).start(space.constraints.widest, lowest=lowest)
        return [probe for probe in space.usable() if probe.need_bytes <= self.capacity_bytes]

    def _more_host(self) -> Iterator[Remedy]:
        if self.space.constraints.host_budget_bytes is None:
            return
        fits = self._fitting(self.space.under(dataclasses.replace(self.space.constraints, host_budget_bytes=None)))
        found = min(fits, key=lambda probe: probe.host_bytes, default=None)
        if found is not None:
            needed = -(-found.host_bytes // MIB)
            yield Remedy(
                limit="the host's memory", instead=argument("host_budget", f"{needed}MiB"), recipe=found.recipe
            )

    def _without_pins_and_bans(self) -> Iterator[Remedy]:
        constraints, plain = self.space.constraints, Recipe()
        if not constraints.pins and not constraints.forbidden:
            return
        free = self._without((*constraints.pins, *constraints.forbidden))
        fitting = [] if free is None else self._fitting(free)
        if not fitting:
            return  # all of them together would not do
        best = min(fitting, key=lambda probe: probe.need_bytes).recipe
        pinned = [name for name, value in constraints.pins.items() if getattr(best, name) != value]
        banned = [name for name in sorted(constraints.forbidden) if getattr(best, name) != getattr(plain, name)]
        found = 0
        for name in (*pinned, *banned)[:_MOST_LIFTED]:
            without = self._without((name,))
            fits = [] if without is None else self._fitting(without)
            if fits:
                found += 1
                limit = _limit(name, constraints)
                yield Remedy(limit=limit, instead=f"without {limit}", recipe=_fastest(fits).recipe)
        if not found and pinned + banned:
            limit = " and ".join(_limit(name, constraints) for name in (*pinned, *banned))
            yield Remedy(limit=limit, instead=f"without {limit}", recipe=best)

    def _without(self, names: tuple[str, ...]) -> Space | None:
        """The space without some pins and bans; None where the rest contradicts itself."""
        constraints = self.space.constraints
        pins = {name: value for name, value in constraints.pins.items() if name not in names}
        plain = {
            name: constraints.needed.get(name, getattr(Recipe(), name)) for name in names if name in constraints.pins
        }
        try:
            base = self.space.base.replace(**plain)
        except RecipeError:
            return None
        lifted = dataclasses.replace(constraints, pins=pins, forbidden=constraints.forbidden - set(names))
        return dataclasses.replace(self.space, constraints=lifted, base=base)

    def _less_fidelity(self) -> Iterator[Remedy]:
        for level in LEVELS[LEVELS.index(self.allowed) + 1 :]:
            fits = self._fitting(self.space.under(self.space.constraints.up_to(level)), lowest=level)
            if fits:
                limit, instead = "the fidelity that is allowed", _allowing(level)
                yield Remedy(limit=limit, instead=instead, recipe=_fastest(fits).recipe)
                return

    def _pins_with_less_fidelity(self) -> Iterator[Remedy]:
        """A wider fidelity, without the pins on what would need less by it: bf16-mixed where bf16-true would do."""
        allowed, pins = LEVELS.index(self.allowed), self.space.constraints.pins
        for wider in range(allowed + 1, len(LEVELS)):
            leaner = {
                name: value
                for technique in TECHNIQUES
                if (least := technique.planning.least) and allowed < LEVELS.index(least.level) <= wider
                for name, value in least.changes.items()
            }
            names = tuple(name for name, value in leaner.items() if name in pins and pins[name] != value)
            without = self._without(names) if names else None
            if without is None:
                continue
            level = LEVELS[wider]
            fits = self._fitting(without.under(without.constraints.up_to(level)), lowest=level)
            if fits:
                limits = " and ".join(_limit(name, self.space.constraints) for name in names)
                yield Remedy(
                    limit=f"{limits} together with the fidelity that is allowed",
                    instead=f"without {limits}, and with {_allowing(level)}",
                    recipe=_fastest(fits).recipe,
                )
                return


def does_not_fit(
    *,
    title: str,
    budget_bytes: int,
    refusal: Refusal,
    place: Place,
    margin: Margin,
    advice: str,
    estimate: Callable[[Probe], Estimate],
) -> DoesNotFitError:
    """Returns the error of a budget in which nothing fits; `estimate`: that of a recipe within the budget.

    `advice`: what is to be said beside, empty or with a line break before it.
    """
    context = place.card.context_bytes
    budget = f"{format_bytes(budget_bytes)} on {place.card.name}"
    taken_off = f"margin {format_bytes(margin.bytes_of(budget_bytes))}"
    if context:
        taken_off += f", CUDA context {format_bytes(context)}"
    least, remedies = refusal.smallest(), refusal.remedies()
    budgets = {level: margin.budget_for(probe.need_bytes, context) for level, probe in least.items()}
    rows = {  # by size: a wider fidelity that gains nothing is not said
        size // MIB: f"  {size // MIB} MiB{'' if level == refusal.allowed else f' with {_allowing(level)}'}: "
        f"{recipe_in_words(least[level].recipe)}"
        for level, size in reversed(budgets.items())
    }
    advice += _advice(refusal.space, next(iter(least.values()), None), place, estimate)
    limits = list(dict.fromkeys(one.limit for one in remedies)) or ["the device's memory"]
    parts = [
        f"{title} does not fit {budget} ({taken_off} taken off). What stands in the way: {' or '.join(limits)}"
        f"{'' if remedies else '; nothing that was tried instead is enough'}. "
        f"Recipes that were simulated: {len(refusal.space.simulations.probes)}."
    ]
    if remedies:
        parts += ["It fits with one of", *(f"  {one}" for one in remedies)]
    if rows:
        parts += ["The smallest budgets that work:", *reversed(rows.values())]
    elif (host := refusal.space.constraints.host_budget_bytes) is not None:
        parts.append(f"No recipe stays within the host budget of {format_bytes(host)}, whatever the device has.")
    error = DoesNotFitError("\n".join(parts) + advice)
    error.smallest_budget_bytes = budgets  # type: ignore[attr-defined]
    error.limits = tuple(limits)  # type: ignore[attr-defined]
    return error


def _advice(space: Space, leanest: Probe | None, place: Place, estimate: Callable[[Probe], Estimate]) -> str:
    """What else would help: blocks that can be checkpointed, other ways to use several GPUs, other cards."""
    lines = "" if space.calls_blocks else f"\nAs for checkpointing blocks, {UNCALLED}."
    if leanest is None:
        return lines
    samples, least = at_once(leanest.recipe, leanest.recorded.workload), estimate(leanest)
    behind = least.steps is not None and least.peak_step >= least.steps
    by_hand = " What a script computes there without gradients, the script alone can make smaller." if behind else ""
    lines = f"\nWith the first of them the peak is in {where_in_words(least)}.{by_hand}{lines}"
    ways = ways_elsewhere(least, samples=samples, fits=False)
    lines += "".join(f"\nOn several GPUs: {way}" for way in ways)
    may_share = space.workload.ranks == 1 and may_be_shared(space.constraints)
    return lines + other_cards(leanest.need_bytes, place, may_share=may_share)


def _fastest(probes: list[Probe]) -> Probe:
    return min(probes, key=lambda probe: (probe.seconds, probe.need_bytes))


def _limit(name: str, constraints: Constraints) -> str:
    return f"the pin {name}={as_typed(constraints.pins[name])}" if name in constraints.pins else f"the ban on {name}"


def _allowing(level: Level) -> str:
    return argument("allow", ",".join(LEVELS[1 : LEVELS.index(level) + 1]))
