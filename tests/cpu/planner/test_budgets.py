"""What a plan answers for other budgets: its search's own choice, from a file too; what was not simulated is said."""

import itertools
import json

import planned
import pytest
from benchmarks.prepared import check_prepared
from test_plan import TRAINED, plain_bytes, real_batch

from snugfit.errors import DoesNotFitError, InputError
from snugfit.planner.budgets import Budgets, budgets_in
from snugfit.units import MIB


@pytest.fixture(scope="module")
def searched(planning_pool):
    """A planner, after its plan for half of what plain training needs."""
    given = {"place": planned.CARD, "batch": planned.batch_of(16, 1024)}
    forbidden = frozenset({"init", "loss_impl", "offload_optimizer", "step_in_backward"})
    with planned.planner(planning_pool, **given, forbidden=forbidden) as planner:
        plan = planner.at(planner.budget_bytes(int(0.6 * plain_bytes(planner))))
        yield planner, plan, json.loads(plan.to_json())


def budgets_between(planner):
    """Budgets at, just below and between what was simulated."""
    needs = sorted({probe.need_bytes for probe in planner.space().usable()})
    at = [planner.budget_bytes(need) for need in needs]
    return sorted(
        {*at, *(budget - MIB for budget in at), *(sum(pair) // 2 for pair in itertools.pairwise(at)), 2 * at[-1]}
    )


def test_every_budget_gets_what_the_search_would_choose(searched):
    planner, plan, document = searched
    kept = Budgets.from_mapping(document["budgets"])
    assert kept == plan.budgets
    seen = set()
    for budget in budgets_between(planner):
        best = planner.search.best(planner.capacity_bytes(budget))
        if best is None:
            for asked in (plan, kept):
                with pytest.raises(DoesNotFitError, match="the least that does is"):
                    asked.at(budget)
            continue
        answer = kept.at(budget)
        assert answer == plan.at(budget)
        assert answer.recipe == best.recipe
        assert (answer.need_bytes, answer.total_bytes, answer.step_seconds, answer.host_bytes) == (
            best.need_bytes, best.total_bytes, best.seconds, best.host_bytes,
        )  # fmt: skip
        seen.add(answer.recipe)
    assert len(seen) >= 4
    own = plan.at(plan.budget_bytes)
    assert (own.recipe, own.fidelity, own.margin_bytes) == (plan.recipe, plan.fidelity, plan.margin_bytes)
    check_prepared(planned.Stack, own, real_batch(16, 1024), TRAINED)


def test_the_smallest_budget_that_is_named_has_an_answer(searched):
    planner, plan, _ = searched
    with pytest.raises(DoesNotFitError) as error:
        plan.at("1MiB")
    smallest = error.value.smallest_budget_bytes["exact"]
    assert plan.at(smallest).recipe == plan.budgets.points[0].recipe and error.value.exit_code == 3
    with pytest.raises(DoesNotFitError):
        plan.at(smallest - MIB)
    with pytest.warns(match="is more than rtx-3090 has"):
        assert plan.at("1TiB").budget_bytes == planner.place.card.memory_bytes


def test_what_was_composed_is_told_apart_and_is_near_its_simulation(searched):
    planner, plan, _ = searched
    composed = plan.budgets.composed
    assert composed and not any(one.simulated or one.recipe in planner.simulations.probes for one in composed)
    for one in composed[::3]:
        budget = planner.budget_bytes(one.need_bytes)
        answer = plan.at(budget) if one.need_bytes >= plan.budgets.points[0].from_bytes else None
        if answer is not None:
            assert answer.faster is not None and answer.faster.step_seconds <= one.step_seconds < answer.step_seconds
            assert "composed, not simulated" in answer.explain() and "(simulated)" in answer.explain()
    kept = dict(planner.simulations.probes)
    try:
        planner.simulations.simulate(one.recipe for one in composed)
        for one in composed:
            seen = planner.simulations.probes[one.recipe]
            assert one.step_seconds == pytest.approx(seen.seconds, rel=0.3)
            assert one.need_bytes == pytest.approx(seen.need_bytes, rel=0.3, abs=planned.GIVEN_BACK_BYTES)
    finally:
        planner.simulations.probes.clear()
        planner.simulations.probes.update(kept)


def altered(document, change):
    kept = json.loads(json.dumps(document))
    change(kept["budgets"])
    return kept


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: kept.pop("points"),
        lambda kept: kept.update(points=[]),
        lambda kept: kept.update(points=7),
        lambda kept: kept.update(margin_share=1),
        lambda kept: kept.update(card_bytes="24GB"),
        lambda kept: kept.update(workload={"batch": 3}),
        lambda kept: kept["points"][0].update(need_bytes="much"),
        lambda kept: kept["points"][0].update(total_bytes=None),
        lambda kept: kept["composed"][0].update(step_seconds=-1),
        lambda kept: kept["points"][0].update(recipe={"checkpoint": "every:x"}),
        lambda kept: kept["points"][0].update(speed=1),
        lambda kept: kept["points"][0].update(recipe=7),
        lambda kept: kept["points"][0].update(need_bytes=float("inf")),
        lambda kept: kept.update(workload="adamw"),
    ],
)
def test_a_plan_that_was_altered_is_refused_in_words(searched, tmp_path, change):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(altered(searched[2], change)))
    with pytest.raises(InputError, match=r"was altered, or written by another version .*Plan anew"):
        budgets_in(path)
