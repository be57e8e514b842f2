"""Fallbacks of plans: training takes them as they are, a step by each is that of plain training, and there always are some."""

import planned
import pytest
from text_models import LLAMA, build

from benchmarks.plan_prepare import planned as prepared_plans
from benchmarks.plan_prepare_subjects import SUBJECTS, language
from snugfit.planner.fallbacks import fallbacks_of
from snugfit.planner.planner import Planner
from snugfit.planner.subjects import given_subject
from snugfit.recipe import Recipe
from snugfit.simulator.batch_shapes import skeleton_of
from snugfit.training.changeable import CHANGEABLE, differing, problems_of_change

CASES = [
    ("hf llama", planned.CPU),  # another loss over the vocabulary
    ("code residual with batch norm", planned.CPU),  # in-place activations; microbatches would be different
    ("code tower, own optimizer", planned.CPU),
    ("code gpt, clipped", planned.CARD),  # offload, by hand-written attention, with tied weights
]


@pytest.mark.parametrize(("name", "place"), CASES, ids=[name for name, _ in CASES])
def test_plans_are_prepared_and_trained_by_each_fallback(planning_pool, name, place):
    rows = prepared_plans(name, SUBJECTS[name], place, planning_pool, shares=(0.8, 0.4))
    for row in rows:
        assert "error" not in row and "does_not_fit" not in row, row
        assert row["worst_difference"] <= 1e-3 and len(row["losses"]) == 1 + len(row["fallbacks"])
    assert any(row["fallbacks"] for row in rows)


def language_planner(pool, **given) -> Planner:
    model = build(LLAMA, num_hidden_layers=3)
    arguments = {"loss": None, "optimizer": "adamw", "forward": None, "split": None, "loss_weight": "tokens"}
    constraints = planned.Constraints(**given)
    subject = given_subject(model, skeleton_of(language(words=256)()), arguments)
    return Planner(subject, planned.CPU, constraints, pool=pool)


def test_a_plan_alone_in_its_kind_is_turned_up(planning_pool, monkeypatch):
    """Of what was simulated nothing may follow the plan; so its own recipe is simulated with more of everything."""
    with language_planner(planning_pool, allow=frozenset({"exact", "rounding"}), pins={"optimizer": None}) as planner:
        space = planner.space()
        recipe = Recipe(precision="bf16-mixed", optimizer_impl="for-loop")
        best = planner.laboratory.need(recipe)
        others = [Recipe(), Recipe(checkpoint="all"), Recipe(precision="bf16-true", stochastic_rounding=True)]
        planner.laboratory.look(others)
        search = planner.search
        monkeypatch.setattr(
            search, "_allowed", lambda probe: probe.recipe in others or probe.recipe.precision == "bf16-mixed"
        )
        for known in [one for one in planner.laboratory.probes if one != recipe and one not in others]:
            del planner.laboratory.probes[known]
        found = fallbacks_of(search, best)
        needs = [planner.laboratory.probes[one].need_bytes for one in found]
    assert len(found) >= 2 and needs == sorted(needs, reverse=True) and needs[0] < best.need_bytes
    for one in found:
        assert one.precision == "bf16-mixed" and set(differing(one, recipe)) <= set(CHANGEABLE)
        assert not list(problems_of_change(recipe, one, space.workload))
    assert any(one.loss_impl == "chunked" for one in found)


def test_pins_are_kept_by_fallbacks(planning_pool):
    pins = {"microbatch_size": None, "checkpoint": "none"}
    with planned.planner(planning_pool, pins=pins, forbidden=frozenset({"step_in_backward"})) as planner:
        plan = planner.at(2**30)
    assert all(one.microbatch_size is None and one.checkpoint == "none" for one in plan.fallbacks)
    assert not any(one.step_in_backward for one in plan.fallbacks)
