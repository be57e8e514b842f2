"""Fallbacks of plans: training takes them as they are, and a step by each of them is one of plain training."""

import planned
import pytest
from benchmarks.plan_prepare import planned as prepared_plans
from benchmarks.plan_prepare_subjects import SUBJECTS

from snugfit.planner.fallbacks import fallbacks_of
from snugfit.recipe import Recipe
from snugfit.training.changeable import CHANGEABLE, differing, problems_of_change

CASES = [
    ("hf llama", planned.CPU),  # another loss over the vocabulary
    ("code residual with batch norm", planned.CPU),  # in-place activations; microbatches would be different
    ("code gpt, clipped", planned.CARD),  # offload, by hand-written attention, with tied weights
]


@pytest.mark.parametrize(("name", "place"), CASES, ids=[name for name, _ in CASES])
def test_plans_are_prepared_and_trained_by_each_fallback(planning_pool, name, place):
    rows = prepared_plans(name, SUBJECTS[name], place, planning_pool, shares=(0.6,))
    for row in rows:
        assert "error" not in row and "does_not_fit" not in row, row
        assert row["worst_difference"] <= 1e-3 and len(row["losses"]) == 1 + len(row["fallbacks"])
    assert any(row["fallbacks"] for row in rows)


def test_a_plan_alone_in_its_kind_is_turned_up(planning_pool, monkeypatch):
    """Of what was simulated nothing may follow the plan; so its own recipe is simulated with more of everything."""
    allow = frozenset({"exact", "rounding"})
    with planned.planner(planning_pool, allow=allow, pins={"optimizer": None}) as planner:
        recipe = Recipe(precision="bf16-mixed", optimizer_impl="for-loop")
        search = planner.search
        for known in [one for one in planner.simulations.probes if one.precision == "bf16-mixed"]:
            del planner.simulations.probes[known]
        best = planner.simulations.need(recipe)
        assert not any(one.precision == recipe.precision for one in planner.simulations.probes if one != recipe)
        monkeypatch.setattr("snugfit.planner.fallbacks._lent", lambda *given: [])
        found = fallbacks_of(search, best)
        needs = [planner.simulations.probes[one].need_bytes for one in found]
    assert len(found) >= 2 and needs == sorted(needs, reverse=True) and needs[0] < best.need_bytes
    for one in found:
        assert one.precision == "bf16-mixed" and set(differing(one, recipe)) <= set(CHANGEABLE)
        assert not list(problems_of_change(recipe, one, search.space.workload))


def test_other_recipes_lend_what_may_change(planning_pool, monkeypatch):
    """Nothing of the plan's precision was simulated; what leaner recipes of another one do is tried with its own."""
    allow = frozenset({"exact", "rounding"})
    with planned.planner(planning_pool, allow=allow, pins={"optimizer": None}) as planner:
        search = planner.search
        for known in [one for one in planner.simulations.probes if one.precision == "bf16-mixed"]:
            del planner.simulations.probes[known]
        best = planner.simulations.need(Recipe(precision="bf16-mixed"))
        monkeypatch.setattr("snugfit.planner.fallbacks._turned_up", lambda *given: [])
        found = fallbacks_of(search, best)
    assert found and all(one.precision == "bf16-mixed" for one in found)


def test_pins_are_kept_by_fallbacks(planning_pool):
    pins = {"microbatch_size": None, "checkpoint": "none"}
    with planned.planner(planning_pool, pins=pins, forbidden=frozenset({"step_in_backward"})) as planner:
        plan = planner.at(2**30)
    assert all(one.microbatch_size is None and one.checkpoint == "none" for one in plan.fallbacks)
    assert not any(one.step_in_backward for one in plan.fallbacks)
