"""The largest batch or sequence for which a plan fits.

Whether a size fits at all is asked of the recipes that need the least memory; speed comes after. Doubling finds a size
that does not fit, bisection the largest that does, and that one is planned like any other.

For the largest batch, the whole batch goes through the model at once: with microbatches any batch would fit. Several GPUs
share it, and each has as many samples.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from snugfit.errors import DoesNotFitError, InputError, SequenceTooLongError, did_you_mean
from snugfit.planner.constraints import Constraints
from snugfit.planner.plan_result import Plan
from snugfit.planner.planner import Planner
from snugfit.planner.probe import WORKERS, Place, Simulations
from snugfit.planner.smallest import Smallest
from snugfit.planner.space import SIZE
from snugfit.simulator.request import NamedModel
from snugfit.simulator.subjects import Subject, named_subject
from snugfit.workers.pool import Pool
from snugfit.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable

MAXIMIZED = ("batch-size", "seq-len")
_MOST = 2**20
"""No batch and no sequence is tried beyond this size."""


def plan_for_largest(
    what: str,
    named: NamedModel,
    workload: Workload,
    place: Place,
    constraints: Constraints,
    budget_bytes: int,
    *,
    pool: Pool | None = None,
) -> Plan:
    """Returns the plan for the largest batch-size or seq-len that fits; `maximized` says the size.

    `pool`: workers to use; None: two, which end with the search.
    """
    name = what.replace("_", "-")
    if name not in MAXIMIZED:
        raise InputError(f"--maximize is {what!r}; {did_you_mean(name, MAXIMIZED)}")
    if name == "batch-size" and SIZE not in constraints.pins:
        constraints = dataclasses.replace(constraints, pins={**constraints.pins, SIZE: None})

    def at(size: int) -> Subject:
        if name == "batch-size":
            return named_subject(named, workload.replace(batch_size=size * workload.ranks))
        return named_subject(dataclasses.replace(named, seq_len=size), workload)

    with contextlib.closing(Pool(WORKERS)) if pool is None else contextlib.nullcontext(pool) as workers:
        largest: Simulations | None = None

        def fits(size: int, smaller: int) -> bool:
            nonlocal largest
            with Planner(at(size), place, constraints, pool=workers) as planner:
                found = _fits(planner, budget_bytes, smaller)
            if found:
                largest = planner.simulations
            return found

        size = _largest(fits) or 1  # where 1 does not fit, planning for it raises, and names the smallest budget
        with Planner(at(size), place, constraints, pool=workers, before=largest) as planner:
            plan = planner.at(budget_bytes)
    found = {"batch_size": size * workload.ranks} if name == "batch-size" else {"seq_len": size}
    return dataclasses.replace(plan, maximized=found)


def _largest(fits: Callable[[int, int], bool]) -> int | None:
    """The largest size that fits: doubled until one does not, then bisected; None when 1 does not fit.

    `fits`: whether a size fits, told the largest one that does by now, or 0.
    """
    low, high = 0, 1
    while high <= _MOST and fits(high, low):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle, low):
            low = middle
        else:
            high = middle
    return low or None


def _fits(planner: Planner, budget_bytes: int, smaller: int) -> bool:
    """Whether a recipe that needs little fits; `smaller` is a size known to fit, or 0."""
    try:
        spaces = planner.space().strategies()
    except (DoesNotFitError, SequenceTooLongError):
        return False
    except InputError:
        if smaller:  # the very same training runs at a smaller size, so the size is what the model does not take
            return False
        raise
    capacity = planner.capacity_bytes(budget_bytes)
    for space in reversed(spaces):
        for seen in Smallest(space).ever_leaner():
            if seen is not None and seen.need_bytes <= capacity and not space.exceeds_host(seen):
                return True
    return False
