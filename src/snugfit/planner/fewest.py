"""The fewest GPUs of a card on which a plan fits, and the time of a step on more of them.

Numbers are doubled, first within a machine and then machines. Up to the fewest it is only asked whether anything fits, of
the recipes that need little. For more than these a few recipes are simulated, beginning with the plan's, and no plan is
made: they gain at least as much.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from snugfit.errors import DoesNotFitError, RecipeError, note
from snugfit.planner.plan_result import GpusTried, Plan
from snugfit.planner.planner import Planner
from snugfit.planner.probe import Probe
from snugfit.planner.search import Search
from snugfit.planner.sharing import in_order
from snugfit.planner.smallest import Smallest
from snugfit.recipe import Recipe
from snugfit.report.words import recipe_in_words
from snugfit.units import format_bytes, format_seconds

MOST = 512
"""No more GPUs than these are tried."""
PER_MACHINE = 8
"""GPUs of a machine; more of them are in several machines."""

FEW_PROBES = 12
"""Recipes that are simulated for more GPUs than the fewest, beside what a search starts from."""

PlannerFor = Callable[[int, int], Planner]
"""Returns what plans for so many GPUs in each of so many machines."""


def numbers(batch_size: int | None, nodes: int) -> list[tuple[int, int]]:
    """Returns (GPUs of a machine, machines), doubled while each GPU has a sample.

    `nodes`: machines that there are; 1: as many as it takes.
    """
    within = [(gpus, nodes) for gpus in (1, 2, 4, PER_MACHINE)]
    beyond = [(PER_MACHINE, 2**power) for power in range(1, MOST)] if nodes == 1 else []
    found = [(gpus, many) for gpus, many in within + beyond if gpus * many <= min(batch_size or MOST, MOST)]
    return found or within[:1]


def plan_for_fewest(planner_for: PlannerFor, batch_size: int | None, nodes: int, budget_bytes: int) -> Plan:
    """Returns the plan for the fewest GPUs; its `gpus_tried` says what fewer and more of them would do.

    `nodes`: machines that there are; 1: as many as it takes.
    """
    asked = numbers(batch_size, nodes)
    tried: list[GpusTried] = []
    plan: Plan | None = None
    for gpus, machines in asked:
        last = (gpus, machines) == asked[-1]
        if plan is not None and gpus * machines > max(PER_MACHINE, 2 * plan.estimate.gpus * plan.estimate.nodes):
            break
        found: Plan | Probe | None = None
        try:
            with planner_for(gpus, machines) as planner:
                if plan is not None:
                    found = _soon(planner, budget_bytes, plan.recipe)
                elif last or _may_fit(planner, budget_bytes):
                    found = plan = planner.at(budget_bytes)
        except DoesNotFitError as error:
            if plan is None and last:
                raise _with_numbers(error, asked, batch_size) from None
        except RecipeError:  # such as a pinned microbatch that is larger than a share
            if plan is None:
                raise
            break
        count = f"{gpus * machines} GPU{'s' if gpus * machines > 1 else ''}"
        if plan is None:
            note(f"{count}: nothing fits {format_bytes(budget_bytes)} of each; trying more.")
        elif found is plan and not last:
            done = f"{format_seconds(plan.step_seconds)} a step, with {recipe_in_words(plan.recipe)}"
            note(f"{count}: fits in {done}. What more of them gain comes next.")
        if found is not None or plan is None:
            seconds, recipe = (None, None) if found is None else (_seconds(found), found.recipe)
            tried.append(
                GpusTried(gpus=gpus, nodes=machines, fits=found is not None, step_seconds=seconds, recipe=recipe)
            )
    assert plan is not None  # the last number raises where nothing fits
    return dataclasses.replace(plan, gpus_tried=tuple(tried))


def _may_fit(planner: Planner, budget_bytes: int) -> bool:
    """Whether a plan is likely to be found; simulates less than planning would."""
    capacity = planner.capacity_bytes(budget_bytes)
    return any(Smallest(space).may_fit(capacity, longer=True) for space in reversed(planner.space().strategies()))


def _seconds(found: Plan | Probe) -> float:
    return found.seconds if isinstance(found, Probe) else found.step_seconds


def _soon(planner: Planner, budget_bytes: int, start: Recipe) -> Probe | None:
    """The fastest of few recipes, in the first way to share in which one fits.

    `start`: the first of them, that of the plan for fewer GPUs.
    """
    planner.look_at_microbatches()
    planner.simulations.simulate([start])
    capacity = planner.capacity_bytes(budget_bytes)
    for space in in_order(planner.space().strategies(), capacity):
        if Smallest(space).may_fit(capacity, longer=False, surely=False):
            found = Search(space, set(), FEW_PROBES).run(capacity)
            if found is not None:
                return found
    return None


def _with_numbers(error: DoesNotFitError, asked: list[tuple[int, int]], batch_size: int | None) -> DoesNotFitError:
    """The error at the largest number, with what was tried before."""
    most = asked[-1][0] * asked[-1][1]
    why = (
        f"each needs a sample of the batch of {batch_size}"
        if batch_size and batch_size < 2 * most
        else "the most tried"
    )
    counts = ", ".join(str(gpus * machines) for gpus, machines in asked)
    error.args = (f"{error}\nTried on {counts} GPUs ({why}); the budgets above are those of one of {most}.",)
    return error
