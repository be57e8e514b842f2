"""What a search keeps for all budgets: its choice for each of them, and what it composed and never simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from snugfit.planner.budgets import BudgetPoint, Budgets
from snugfit.planner.closeness import closest
from snugfit.planner.margin import Margin
from snugfit.planner.probe import Place
from snugfit.planner.search import Search
from snugfit.simulator.prediction import Estimate

_SHARES = (0.4, 0.55, 0.7, 0.8, 0.9, 0.97, 1.05, 1.12, 1.2, 1.35, 1.5, 1.75, 2.1, 2.6)
"""Of the plan's capacity; for each it is composed what would be faster."""


def budgets_of(
    search: Search, estimate: Estimate, place: Place, margin: Margin, traits: Mapping[str, bool], capacity_bytes: int
) -> Budgets:
    """Returns what a plan keeps of its search.

    `estimate`: of the plan, for the names of what was planned.
    `capacity_bytes`: the memory that it was planned for, margin and CUDA's context taken off.
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
        composed=tuple(_composed(search, points, capacity_bytes)),
        traits=traits,
        options=search.space.simulations.subject.options,
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


def _composed(search: Search, points: tuple[BudgetPoint, ...], capacity_bytes: int) -> Iterator[BudgetPoint]:
    """Recipes that promise to be faster than what was simulated, least memory first."""
    told, fastest = set(), float("inf")
    for share in _SHARES if search.space.base.compile == "none" else ():
        capacity = int(share * capacity_bytes)
        found = search.promising(capacity) if capacity < points[-1].need_bytes else None
        if found is None or found.recipe in told or found.seconds >= fastest:
            continue
        told.add(found.recipe)
        fastest = found.seconds
        need = round(found.need_bytes)
        yield BudgetPoint(
            recipe=found.recipe, from_bytes=need, need_bytes=need, step_seconds=found.seconds, simulated=False
        )
