"""Plans for several GPUs: the budget is that of each, and how they share what the model needs is chosen with the rest."""

import dataclasses
import functools

import planned
import pytest
import torch

from snugfit.devices import device_named
from snugfit.errors import DoesNotFitError, InputError, RecipeError
from snugfit.planner.fewest import numbers, plan_for_fewest
from snugfit.recipe import Recipe
from snugfit.techniques.shard import least_weights
from snugfit.units import MIB

BATCH = planned.batch_of(8, 4)


SERVER = dataclasses.replace(planned.CARD, card=device_named("a100-80gb"))
"""A card whose links within a machine and between machines are known."""
PLAIN = {
    "checkpoint": "none", "offload_activations": "none", "offload_optimizer": False, "step_in_backward": False,
}  # fmt: skip
"""Pins that leave the choice of how to share."""


def planner(pool, gpus=4, place=planned.CARD, blocks=4, **given):
    wide = functools.partial(planned.Stack, 512, blocks)
    return planned.planner(pool, place=place, model=wide, batch=BATCH, gpus=gpus, **given)


def spaces(pool, gpus=4, **given):
    with planner(pool, gpus, **given) as one:
        return one.space(), one.space().strategies()


def test_ways_to_share_are_those_that_pins_and_bans_leave(planning_pool):
    space, ways = spaces(planning_pool, 4, nodes=2, place=SERVER)
    assert [way.base.to_mapping(defaults=False) for way in ways] == [
        {},
        {"shard": "gradients"},
        {"shard": "hybrid:4"},
        {"shard": "full"},
        {"shard": "full", "offload_parameters": "all"},
    ]
    assert space.batch == 1 and space.sizes() == [1]
    for given, kept in (
        ({"pins": {"shard": "hybrid:2"}}, [{"shard": "hybrid:2"}, {"shard": "hybrid:2", "offload_parameters": "all"}]),
        ({"forbidden": frozenset({"shard"})}, [{}]),
        ({"pins": {"shard": "full"}, "forbidden": frozenset({"offload_parameters"})}, [{"shard": "full"}]),
    ):
        _, ways = spaces(planning_pool, 2, nodes=2, place=SERVER, **given)
        assert [way.base.to_mapping(defaults=False) for way in ways] == kept
    _, ways = spaces(planning_pool, 1)
    assert [way.base for way in ways] == [Recipe()]


def test_the_budget_is_that_of_each_gpu(planning_pool):
    with planner(planning_pool, blocks=8, pins=PLAIN) as one:  # of four, sharing gradients alone would be enough
        whole = one.simulations.need(Recipe()).need_bytes
        shared = one.simulations.need(Recipe(shard="full")).need_bytes
        assert shared < 0.9 * whole
        plan = one.at(one.budget_bytes(shared))
        fastest = min(one.search.space.usable(), key=lambda probe: probe.seconds)
        assert plan.recipe.shard == "full" and plan.step_seconds > fastest.seconds
        assert plan.estimate.devices[0].fits and (plan.estimate.gpus, plan.fidelity.level) == (4, "exact")
        assert plan.recipe in one.simulations.probes
        for probe in one.search.space.usable():  # of all ways to share, none that was simulated is better
            assert probe.seconds >= plan.step_seconds or probe.need_bytes > one.capacity_bytes(plan.budget_bytes)
        assert plan.slowdown == pytest.approx(plan.step_seconds / fastest.seconds)
        assert all(one.shard == plan.recipe.shard for one in plan.fallbacks)
        card = plan.explain()
    assert "4, a process each" in card and "shard " in card
    assert "the first process builds the model on the host" in plan.reasons["init"]
    assert "without it a step takes" in plan.reasons["shard"]


def test_activations_are_no_part_of_an_update(planning_pool):
    """Processes tell each other something between forward and backward, while all activations are alive."""
    with planned.planner(planning_pool, place=planned.CARD, batch=planned.batch_of(4096, 64), gpus=4) as one:
        plain, again = (one.simulations.need(Recipe(shard="full", checkpoint=how)) for how in ("none", "all"))
    assert again.need_bytes < 0.8 * plain.need_bytes
    assert plain.profile.outside_bytes == pytest.approx(again.profile.outside_bytes, rel=0.01)


def test_one_gpu_has_nobody_to_share_with(planning_pool):
    with planned.planner(planning_pool, pins=PLAIN) as one:
        assert one.at(2**30).reasons["shard"] == "off: one GPU trains, and has nobody to share with."


def test_dropout_draws_other_masks_on_several_gpus_which_was_asked_for(planning_pool):
    model = functools.partial(planned.Stack, dropout=0.1)
    with planned.planner(planning_pool, place=planned.CARD, model=model, gpus=2, pins=PLAIN) as one:
        plan = one.at(2**30)
    assert plan.fidelity.level == "different" and plan.recipe.microbatch_size is None


def test_what_weights_alone_tell():
    found = {way: least_weights(Recipe(shard=way), 8) for way in ("none", "gradients", "hybrid:2", "full")}
    assert found == {"none": 1.0, "gradients": 1.0, "hybrid:2": 0.5, "full": 0.125}
    assert least_weights(Recipe(shard="full", offload_parameters="all"), 8) == 0.0


def test_numbers_are_doubled_while_each_gpu_has_a_sample():
    assert numbers(6, 1) == [(1, 1), (2, 1), (4, 1)]
    assert numbers(40, 1)[-2:] == [(8, 2), (8, 4)]
    assert numbers(None, 1)[-1] == (8, 64)
    assert numbers(64, 4) == [(1, 4), (2, 4), (4, 4), (8, 4)]


def test_the_fewest_gpus(planning_pool, caplog):
    pins = {**PLAIN, "offload_parameters": "none", "microbatch_size": None, "adapter": "none"}
    made = functools.partial(planner, planning_pool, pins=pins, forbidden=frozenset({"quantize"}))
    with made(2) as two, made(4) as four:
        needs = [one.simulations.need(one.constraints.base().replace(shard="full")).need_bytes for one in (two, four)]
        assert needs[1] < 0.9 * needs[0]
        budget = two.budget_bytes(sum(needs) // 2)
    with caplog.at_level("INFO", "snugfit"):
        plan = plan_for_fewest(lambda gpus, nodes: made(gpus, nodes=nodes), 4, 1, budget)
    assert [text.split(" fits ")[0] for text in caplog.messages] == ["1 GPU: nothing", "2 GPUs: nothing"]
    assert [(tried.gpus, tried.fits) for tried in plan.gpus_tried] == [(1, False), (2, False), (4, True)]
    assert plan.estimate.gpus == 4 and plan.gpus_tried[-1].step_seconds == plan.step_seconds
    assert "How many GPUs" in plan.explain()
    with pytest.raises(DoesNotFitError, match="Tried on 1, 2 GPUs") as error:
        plan_for_fewest(lambda gpus, nodes: made(gpus, nodes=nodes), 2, 1, 2 * MIB)
    assert error.value.smallest_budget_bytes and error.value.exit_code == 3


def test_machines_whose_links_are_unknown(planning_pool):
    with planner(planning_pool, 2, nodes=2) as one, pytest.raises(InputError, match="the links between 4 of them"):
        one.at(2**30)


FEW = {
    "checkpoint": "all", "shard": "none", "offload_parameters": "none", "offload_optimizer": False,
    "offload_activations": "none", "step_in_backward": False, "optimizer_impl": "fused", "reduce_dtype": "as-is",
}  # fmt: skip
"""Pins that leave little to search."""


def test_more_gpus_than_samples(planning_pool):
    with planner(planning_pool, 16, pins=FEW) as one:
        plan = one.at(2**30)
    assert plan.recipe.tensor_parallel == 2 and plan.fidelity.level == "exact"
    assert plan.reasons["tensor_parallel"].startswith("2: without it, a batch of 8 cannot be shared by 16 GPUs")
    assert all(recipe.tensor_parallel == 2 for recipe in plan.fallbacks)
    for given in ({"forbidden": frozenset({"tensor_parallel"})}, {"pins": {**FEW, "tensor_parallel": 1}}):
        with (
            planner(planning_pool, 16, **given) as one,
            pytest.raises(RecipeError, match="or tensor_parallel=2: so many"),
        ):
            one.at(2**30)


def test_more_gpus_than_samples_for_a_model_that_cannot_be_cut(planning_pool):
    made = planned.planner(planning_pool, place=planned.CARD, model=_Whole, batch=BATCH, gpus=16)
    with made as one, pytest.raises(RecipeError, match="cannot be shared by 16 GPUs") as error:
        one.at(2**30)
    assert len(error.value.problems) == 1 and "That was tried: tensor_parallel" in str(error.value)
    assert "finds nothing to cut" in str(error.value)


def test_layers_are_cut_where_nothing_else_fits(planning_pool):
    """One sample is more than there is room for, in any recipe: only what is inside of its layers can be divided."""
    made = functools.partial(
        planned.planner, planning_pool, place=planned.CARD, model=functools.partial(planned.Stack, 128, 2),
        batch=planned.batch_of(4, 16384), gpus=4, pins=FEW,
    )  # fmt: skip
    with made(forbidden=frozenset({"tensor_parallel"})) as one, pytest.raises(DoesNotFitError) as error:
        one.at(2**20)
    smallest = error.value.smallest_budget_bytes["exact"]
    with made() as one:
        plan = one.at(int(0.8 * smallest))
    assert plan.recipe.tensor_parallel in (2, 4) and plan.fidelity.level == "exact"
    assert plan.reasons["tensor_parallel"].endswith("without it, nothing that was simulated fits.")
    assert plan.estimate.devices[0].fits


class _Whole(torch.nn.Module):
    """One layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 5)

    def forward(self, x):
        return self.layer(x.mean(1))
