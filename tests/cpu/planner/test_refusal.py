"""Where nothing fits, the limits that stand in the way are named, and what is said to do instead does it."""

import functools
import re

import planned
import pytest

from snugfit.devices import device_named
from snugfit.errors import DoesNotFitError
from snugfit.fields import field_infos
from snugfit.planner import planner as planning
from snugfit.planner.other_cards import other_cards
from snugfit.planner.refusal import Refusal
from snugfit.recipe import Recipe

ALL_FIELDS = frozenset(field_infos(Recipe))
WIDE = functools.partial(planned.Stack, width=256, blocks=2)


def refused(planner, budget_bytes):
    with pytest.raises(DoesNotFitError) as error:
        planner.at(budget_bytes)
    return error.value


def only(*fields):
    return ALL_FIELDS.difference(fields)


def plain_bytes(planner):
    return planner.simulations.need(planner.constraints.base()).need_bytes


def test_the_smallest_host_budget_is_said_and_works(planning_pool):
    given = {"place": planned.CARD, "model": WIDE, "forbidden": only("checkpoint")}
    with planned.planner(planning_pool, host_budget_bytes=2**20, **given) as planner:
        error = refused(planner, 2**30)
    assert "the host's memory" in error.limits
    enough = int(re.search(r"host_budget='(\d+)MiB'", str(error)).group(1)) * 2**20
    with planned.planner(planning_pool, host_budget_bytes=enough, **given) as planner:
        assert 2**20 < planner.at(2**30).estimate.host_bytes <= enough


def test_recipes_that_keep_nothing_on_the_host_are_tried_where_it_is_short(planning_pool):
    given = {"place": planned.CARD, "model": WIDE, "forbidden": only("init", "checkpoint", "offload_activations")}
    with planned.planner(planning_pool, host_budget_bytes=2**20, **given) as planner:
        least = planner.simulations.need(Recipe(init="device", checkpoint="all"))
        assert least.host_bytes < 2**20
        plan = planner.at(planner.budget_bytes(int(1.05 * least.need_bytes)))
    assert plan.estimate.host_bytes <= 2**20


@pytest.mark.parametrize(
    "pins, banned, limit",
    [
        ({"microbatch_size": None}, (), "the pin microbatch_size=None"),
        ({}, ("microbatch_size",), "the ban on microbatch_size"),
        (
            {"microbatch_size": None, "checkpoint": "none"},
            (),
            "the pin microbatch_size=None and the pin checkpoint=none",
        ),
    ],
)
def test_the_pin_or_ban_that_stands_in_the_way_is_named_and_no_other(planning_pool, pins, banned, limit):
    forbidden = (only("checkpoint", "microbatch_size", "inplace") | set(banned)) - set(pins)
    with planned.planner(planning_pool, pins={"inplace": False, **pins}, forbidden=forbidden) as planner:
        free = planner.simulations.need(Recipe(microbatch_size=1, checkpoint="all")).need_bytes
        error = refused(planner, planner.budget_bytes(int(1.005 * free)))
    assert error.limits == (limit,)
    assert f"without {limit}: " in str(error)


def test_the_fidelity_that_would_do_is_named(planning_pool):
    with planned.planner(planning_pool, forbidden=only("precision", "stochastic_rounding")) as planner:
        need = plain_bytes(planner)
        far = refused(planner, need // 10)
        near = refused(planner, planner.budget_bytes(int(0.8 * need)))
    assert "the fidelity that is allowed" not in far.limits
    assert "the fidelity that is allowed" in near.limits and "  allow='rounding': precision=bf16-true" in str(near)


def test_a_pin_and_fidelity_that_stand_in_the_way_together_are_named(planning_pool):
    """Mixed precision that is pinned holds weights in 32 bits, whatever is allowed, and so does plain training."""
    given = {"model": WIDE, "forbidden": only("precision", "init")}
    with planned.planner(planning_pool, pins={"precision": "bf16-mixed"}, **given) as planner:
        space = planner.space()
        capacity = planner.simulations.need(Recipe(precision="bf16-true")).need_bytes
        refusal = Refusal(space, capacity, planning.Smallest(space).start)
        (remedy,) = refusal._pins_with_less_fidelity()  # remedies() ends with lifted bans here
    assert remedy.limit == "the pin precision=bf16-mixed together with the fidelity that is allowed"
    assert remedy.instead == "without the pin precision=bf16-mixed, and with allow='rounding'"
    assert remedy.recipe.precision == "bf16-true"


def test_weights_that_cannot_fit_take_few_simulations(planning_pool, monkeypatch):
    monkeypatch.setattr(planning, "MOST_OPERATORS", 0)  # as if each recipe were a large one
    with planned.planner(planning_pool, place=planned.CARD, model=WIDE) as planner:
        error = refused(planner, 4 * 2**20)
        assert Recipe() not in planner.simulations.probes  # their bytes are known as soon as the model is built
        weights = sum(planner.simulations.need(Recipe()).recorded.weight_bytes.values())
        assert weights > 4 * 2**20 and len(planner.simulations.probes) <= 8
        assert planner.at(planner.budget_bytes(planner.simulations.need(Recipe()).need_bytes)).recipe == Recipe()
    assert set(error.smallest_budget_bytes) == {"exact", "rounding", "different"}
    assert "itself has the memory for the first of these budgets" in str(error)


def test_what_is_far_from_fitting_takes_few_simulations_too(planning_pool, monkeypatch):
    monkeypatch.setattr(planning, "MOST_OPERATORS", 0)
    with planned.planner(planning_pool, place=planned.CARD, model=WIDE, forbidden=only("checkpoint")) as planner:
        leanest = planning.Smallest(planner.space()).start("exact").need_bytes
        weights = sum(planner.simulations.need(Recipe()).recorded.weight_bytes.values())
        budget = planner.budget_bytes(int(0.45 * leanest))
        assert weights < planner.capacity_bytes(budget)
        refused(planner, budget)
        assert len(planner.simulations.probes) <= 10


def test_cards_with_room_are_named_the_smallest_first():
    place = planned.CARD
    said = other_cards(place.card.memory_bytes, place, may_share=True)
    names = re.search(r"these budgets: (.*)\.", said).group(1).split(", ")
    sizes = [device_named(name).memory_bytes for name in names]
    assert sizes == sorted(sizes) and sizes[0] > place.card.memory_bytes and len(names) == 3
    assert "fewest" in said and "fewest" not in other_cards(place.card.memory_bytes, place, may_share=False)
    assert other_cards(10**15, place, may_share=False) == ""


def test_the_card_itself_is_named_where_the_budget_is_too_small():
    said = other_cards(1, planned.CARD, may_share=True)
    assert said == f"\n{planned.CARD.card.name} itself has the memory for the first of these budgets."
