"""Plans of a small model: they fit, keep to what was asked, never get faster with less, and say why."""

import functools
import json
import re

import planned
import pytest
import torch
from benchmarks.prepared import check_prepared

import snugfit
from snugfit.devices import device_named
from snugfit.errors import DoesNotFitError, RecipeError
from snugfit.fields import field_infos
from snugfit.planner.planner import Planner
from snugfit.recipe import Recipe
from snugfit.recording.replay import replay
from snugfit.recording.tensor_bytes import TensorBytes

TRAINED = {"loss": planned.cross_entropy, "optimizer": "adamw", "lr": 1e-3}


def real_batch(samples=16, tokens=128):
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(samples, tokens, 16, generator=generator)
    return inputs, torch.randint(0, 5, (samples,), generator=generator)


def plain_bytes(planner: Planner) -> int:
    return planner.simulations.need(planner.constraints.base()).need_bytes


@pytest.mark.parametrize("place", [planned.CPU, planned.CARD], ids=["cpu", "card"])
def test_plans_fit_and_time_never_falls_with_the_budget(planning_pool, place):
    batch = planned.batch_of(16, 512)
    with planned.planner(planning_pool, place=place, batch=batch) as planner:
        whole = planner.budget_bytes(plain_bytes(planner))
        plans = [planner.at(int(whole * share)) for share in (1.5, 1.0, 0.8, 0.65)]
        config = TensorBytes() if place.on_cpu else None
        for plan in plans:
            capacity = planner.capacity_bytes(plan.budget_bytes)
            assert replay(plan.estimate.trace, config, capacity).shortage is None
            assert plan.estimate.devices[0].fits and plan.fidelity.level == "exact"
            assert plan.recipe in planner.simulations.probes
            check_prepared(planned.Stack, plan, real_batch(16, 512), TRAINED)
        seconds = [plan.step_seconds for plan in plans]
        assert seconds == sorted(seconds)
        assert plans[0].slowdown == 1.0 and plans[-1].slowdown == pytest.approx(seconds[-1] / seconds[0], rel=0.02)
        assert plans[-1].recipe != Recipe()


def test_what_a_plan_holds(planning_pool):
    with planned.planner(planning_pool) as planner:
        plan = planner.at(int(0.6 * plain_bytes(planner)))
    check_prepared(planned.Stack, plan, real_batch(), TRAINED)
    document = json.loads(plan.to_json())
    assert {
        "recipe", "estimate", "fidelity", "frontier", "reasons", "slowdown", "budget_bytes", "margin_bytes",
    } <= document.keys()  # fmt: skip
    assert document["reasons"].keys() == field_infos(Recipe).keys()
    assert Recipe.from_mapping(document["recipe"]) == plan.recipe
    points = [(point["total_bytes"], point["step_seconds"]) for point in document["frontier"]]
    assert points == sorted(points) and [s for _, s in points] == sorted((s for _, s in points), reverse=True)
    assert plan.recipe in [point.recipe for point in plan.frontier]
    needs = [planner.simulations.probes[recipe].need_bytes for recipe in plan.fallbacks]
    assert needs and needs == sorted(needs, reverse=True)
    assert needs[0] < planner.simulations.probes[plan.recipe].need_bytes
    text = " ".join(plan.explain().split())
    for part in ("Why", "not allowed (allow='rounding')", "Memory against time", "still fit"):
        assert part in text


def test_pins_and_bans_are_kept(planning_pool):
    with planned.planner(
        planning_pool, pins={"microbatch_size": None}, forbidden=frozenset({"step_in_backward"})
    ) as planner:
        plan = planner.at(int(0.7 * plain_bytes(planner)))
    assert plan.recipe.microbatch_size is None and not plan.recipe.step_in_backward
    assert plan.recipe.checkpoint != "none"
    check_prepared(planned.Stack, plan, real_batch(), TRAINED)
    assert plan.reasons["microbatch_size"] == "pinned to None." and "forbidden" in plan.reasons["step_in_backward"]
    assert "blocks" in plan.reasons["checkpoint"] or "selective" in plan.reasons["checkpoint"]
    assert plan.reasons["loss_impl"] == "off: no head over a vocabulary."
    # What an error advises is no reason: the plan has done without already.
    assert not [text for text in plan.reasons.values() if re.search(r"\b(Leave|Set|Give) ", text)]


@pytest.mark.filterwarnings("ignore:compile=.* is predicted by compiling")
def test_a_plan_with_a_compiler_holds_what_compiling_showed(planning_pool):
    compiled = {"compile": "aot_eager_decomp_partition"}
    forbidden = frozenset(field_infos(Recipe)) - {"checkpoint", "compile", "compile_memory_budget"}
    with planned.planner(
        planning_pool, model=functools.partial(planned.Stack, blocks=2), pins=compiled, forbidden=forbidden
    ) as planner:
        eager = plain_bytes(planner)
        plan = planner.at(2 * eager)
        probes = planner.simulations.probes
        found = probes[plan.recipe]
        assert found.as_it_runs and found.need_bytes <= planner.capacity_bytes(plan.budget_bytes)
        assert plan.recipe.compile == compiled["compile"]
        with pytest.raises(DoesNotFitError, match="The smallest budgets that work") as refused:
            planner.at(int(0.7 * eager))  # no compiled step fits that
        least = min(probe.need_bytes for probe in planner.space().usable() if probe.as_it_runs)
        assert refused.value.smallest_budget_bytes["exact"] == planner.budget_bytes(least)


def test_a_model_with_dropout_is_not_cut(planning_pool):
    def model():
        return planned.Stack(dropout=0.1)

    with planned.planner(planning_pool, model=model) as planner:
        plan = planner.at(int(0.7 * plain_bytes(planner)))
    check_prepared(model, plan, real_batch(), TRAINED)
    assert plan.recipe.microbatch_size is None
    assert "dropout draws other masks" in plan.reasons["microbatch_size"]


def test_a_wider_fidelity_is_used(planning_pool):
    rounding = frozenset({"exact", "rounding"})
    with (
        planned.planner(planning_pool, allow=rounding, pins={"optimizer": None}) as wide,
        planned.planner(planning_pool) as narrow,
    ):
        budget = int(0.5 * plain_bytes(wide))
        plans = [one.at(budget) for one in (wide, narrow)]
    assert plans[0].step_seconds <= plans[1].step_seconds
    for plan in plans:
        check_prepared(planned.Stack, plan, real_batch(), TRAINED)


def test_what_does_not_fit_names_the_smallest_budgets_and_they_work(planning_pool):
    with planned.planner(planning_pool, pins={"adapter": "none"}, forbidden=frozenset({"quantize"})) as planner:
        with pytest.raises(DoesNotFitError) as error:
            planner.at(50_000)
        smallest = error.value.smallest_budget_bytes
        assert set(smallest) == {"exact", "rounding", "different"}
        assert smallest["exact"] >= smallest["rounding"] >= smallest["different"]
        gains = smallest["different"] < smallest["rounding"]  # in whole MiB
        assert ("allow='rounding,different'" in str(error.value)) is gains and error.value.exit_code == 3
        plan = planner.at(smallest["exact"])
    assert plan.recipe.checkpoint != "none"
    check_prepared(planned.Stack, plan, real_batch(), TRAINED)


def test_host_memory_is_a_budget_of_its_own(planning_pool):
    offloads = {"offload_activations": "all", "microbatch_size": None, "checkpoint": "none"}
    with planned.planner(planning_pool, place=planned.CARD, pins=offloads) as planner:
        host = planner.simulations.need(Recipe(**offloads)).host_bytes
    with (
        planned.planner(planning_pool, place=planned.CARD, pins=offloads, host_budget_bytes=host // 2) as planner,
        pytest.raises(DoesNotFitError, match="No recipe stays within the host budget"),
    ):
        planner.at(2**30)


def test_on_cpu_what_is_kept_on_the_host_counts_against_the_budget(planning_pool):
    pins = {"offload_optimizer": True}
    with planned.planner(planning_pool, pins=pins) as planner:
        offloaded, plain = planner.simulations.need(Recipe(**pins)), planner.simulations.need(Recipe())
    assert offloaded.host_bytes > 0 and offloaded.need_bytes >= plain.need_bytes


def test_pins_that_contradict_the_workload(planning_pool):
    with (
        planned.planner(planning_pool, pins={"step_in_backward": True, "microbatch_size": 4}) as planner,
        pytest.raises(RecipeError, match="step_in_backward contradicts accumulation"),
    ):
        planner.at(2**30)


def test_from_python(planning_pool):
    plan = snugfit.plan(
        planned.Stack,
        planned.batch_of(),
        loss=planned.cross_entropy,
        budget="1GiB",
        device="rtx-3090",
        pool=planning_pool,
    )
    context = device_named("rtx-3090").context
    assert plan.recipe == Recipe() and plan.budget_bytes == 2**30
    assert plan.margin_bytes == max(32212255, context.above_typical_bytes) and "3 %" in plan.margin_source
    room = 2**30 - plan.margin_bytes - context.typical_bytes
    assert plan.estimate.devices[0].headroom_bytes == room - plan.estimate.smallest_bytes()
    assert (plan.estimate.context_bytes, plan.estimate.context_source) == (context.typical_bytes, "published")
    assert "read on such cards" in plan.explain()
    assert isinstance(plan, snugfit.Plan)
    check_prepared(planned.Stack, plan, real_batch(), TRAINED)
