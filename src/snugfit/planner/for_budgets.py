"""What a search keeps for all budgets: its choice for each of them, and what it composed and never simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from snugfit.planner.budgets import BudgetPoint, Budgets
from snugfit.planner.closeness import closest
from snugfit.planner.margin import Margin
from snugfit.planner.probe import Place
from snugfit.planner.search import Search
from snugfit.simulator.prediction import Estimate

_BELOW = 0.6
"""Part of what the leanest simulated recipe needs, from which on composed ones are looked for."""
_CAPACITIES = 16
"""For so many capacities at most, each a share larger than the one before."""


def budgets_of(search: Search, estimate: Estimate, place: Place, margin: Margin, traits: Mapping[str, bool]) -> Budgets:
    """Returns what a plan keeps of its search.

    `estimate`: of the plan, for the names of what was planned.
    """
    points = tuple(_choices(search))
    return Budgets(
        title=estimate.title,
        device=estimate.device,
        batch_shape=estimate.batch_shape,
        workload=search.space.workload,
        card_bytes=place.card.memory_bytes,
        context_bytes=place.card.context_bytes,
        margin_share=margin.share,
        least_margin_bytes=margin.least_bytes,
        points=points,
        composed=tuple(_composed(search, points)),
        traits=traits,
    )


def _choices(search: Search) -> Iterator[BudgetPoint]:
    """The search's choice among what was simulated, for every capacity, least memory first."""
    before = None
    for need in sorted({probe.need_bytes for probe in search.space.usable() if probe.as_it_runs}):
        fitting = (probe for probe in search.space.usable() if probe.as_it_runs and probe.need_bytes <= need)
        best = closest(fitting, search.space.workload)
        if best is None or best is before:
            continue
        before = best
        yield BudgetPoint(
            recipe=best.recipe,
            from_bytes=need,
            need_bytes=best.need_bytes,
            step_seconds=best.seconds,
            simulated=True,
            total_bytes=best.total_bytes,
            host_bytes=best.host_bytes,
        )


def _composed(search: Search, points: tuple[BudgetPoint, ...]) -> Iterator[BudgetPoint]:
    """Recipes that promise to be faster than what was simulated, least memory first."""
    if search.space.base.compile != "none":
        return
    low, high = _BELOW * points[0].need_bytes, float(points[-1].need_bytes)
    told, fastest = set(), float("inf")
    for number in range(_CAPACITIES + 1):
        capacity = int(low * (high / low) ** (number / _CAPACITIES))
        found = search.promising(capacity)
        if found is None or found.recipe in told or found.seconds >= fastest:
            continue
        told.add(found.recipe)
        fastest = found.seconds
        need = round(found.need_bytes)
        yield BudgetPoint(
            recipe=found.recipe, from_bytes=need, need_bytes=need, step_seconds=found.seconds, simulated=False
        )
