"""Rivals of plans: they fit, promise about as much, and a run may go by them for a while."""

import planned
import pytest

from snugfit.fidelity import fidelity
from snugfit.planner.rivals import ABOUT, MOST
from snugfit.recipe import Recipe
from snugfit.training.changeable import problems_of_change


@pytest.mark.parametrize("share", [0.9, 0.4])
def test_rivals_fit_and_promise_about_as_much(planning_pool, share):
    with planned.planner(planning_pool) as planner:
        most = planner.budget_bytes(planner.simulations.need(Recipe()).need_bytes)
        plan = planner.at(int(share * most))
        capacity, workload = planner.capacity_bytes(plan.budget_bytes), planner.search.space.workload
        probes = [planner.simulations.probes[one.recipe] for one in plan.rivals]
    assert 1 <= len(plan.rivals) <= MOST
    for rival, probe in zip(plan.rivals, probes, strict=True):
        assert probe.need_bytes <= capacity and rival.step_seconds == probe.seconds <= ABOUT * plan.step_seconds
        assert rival.recipe != plan.recipe and not any(problems_of_change(plan.recipe, rival.recipe, workload))
        assert fidelity(rival.recipe, workload).level == plan.fidelity.level == "exact"
        assert rival.peak_allocated_bytes <= rival.peak_reserved_bytes
    on = [one.to_mapping(defaults=False).items() for one in (plan.recipe, *(one.recipe for one in plan.rivals))]
    assert not any(one >= other for number, one in enumerate(on) for other in on[:number]), "more than a faster one"
    assert plan.to_mapping()["rivals"][0]["recipe"] == plan.rivals[0].recipe.to_mapping()


def test_a_plan_that_rounds_has_rivals_that_round_no_more(planning_pool):
    with planned.planner(planning_pool, allow=frozenset({"exact", "rounding"}), pins={"optimizer": None}) as planner:
        plan = planner.at(2**24)
        workload = planner.search.space.workload
    for rival in plan.rivals:
        assert fidelity(rival.recipe, workload).reasons.keys() <= plan.fidelity.reasons.keys()
