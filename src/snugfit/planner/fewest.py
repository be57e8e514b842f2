"""The fewest GPUs of a card on which a plan fits, and the time of a step on more of them.

Numbers are doubled, first within a machine and then machines. Up to the fewest it is only asked whether anything fits, of
the recipes that need little; from there on each number is planned like any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from snugfit.errors import DoesNotFitError, RecipeError, note
from snugfit.planner.plan_result import GpusTried, Plan
from snugfit.planner.planner import Planner
from snugfit.report.words import recipe_in_words
from snugfit.units import format_bytes, format_seconds

MOST = 512
"""No more GPUs than these are tried."""
PER_MACHINE = 8
"""GPUs of a machine; more of them are in several machines."""

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
        try:
            with planner_for(gpus, machines) as planner:
                found = planner.at(budget_bytes) if plan or last or planner.fits(budget_bytes) else None
        except DoesNotFitError as error:
            if plan is None and last:
                raise _with_numbers(error, asked, batch_size) from None
            found = None
        except RecipeError:  # such as a pinned microbatch that is larger than a share
            if plan is None:
                raise
            break
        count = f"{gpus * machines} GPU{'s' if gpus * machines > 1 else ''}"
        if found is None:
            note(f"{count}: nothing fits {format_bytes(budget_bytes)} of each; trying more.")
        elif plan is None and not last:
            seconds = "" if found.step_seconds is None else f" in {format_seconds(found.step_seconds)} a step"
            note(f"{count}: fits{seconds}, with {recipe_in_words(found.recipe)}. What more of them gain comes next.")
        plan = plan or found
        tried.append(
            GpusTried(
                gpus=gpus,
                nodes=machines,
                fits=found is not None,
                step_seconds=None if found is None else found.step_seconds,
                recipe=None if found is None else found.recipe,
            )
        )
    assert plan is not None  # the last number raises where nothing fits
    return dataclasses.replace(plan, gpus_tried=tuple(tried))


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
