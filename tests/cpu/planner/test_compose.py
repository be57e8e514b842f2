"""Composed recipes against simulated ones: bytes and seconds of choices of blocks and of sizes nobody simulated."""

import dataclasses

import planned
import pytest

from snugfit.planner.search import Search
from snugfit.planner.space import BY_BLOCK
from snugfit.recipe import Recipe


@pytest.fixture(scope="module")
def searched(planning_pool):
    with planned.planner(planning_pool) as planner:
        planner.search.run(2**40)
        yield planner.search


def level_of(composition, checkpointed):
    """Bytes at the highest point of a step, some blocks checkpointed."""
    recompute, _ = composition.treatments(composition.largest)
    return composition.levels(composition.largest, "plain").highest(dict.fromkeys(checkpointed, recompute))


def test_blocks_in_between(searched: Search):
    composition = searched.compositions["plain"]
    size = searched.sizes[0]
    for count in (1, 2, 3):
        recipe = Recipe(checkpoint=f"blocks:{count}")
        searched.simulations.simulate([recipe])
        seen = searched.simulations.probes[recipe]
        assert level_of(composition, range(count)) == pytest.approx(seen.need_bytes, rel=0.03)
        recompute, _ = composition.treatments(size)
        assert composition.plain_seconds(size) + sum(recompute.seconds[:count]) == pytest.approx(seen.seconds, rel=0.02)


def test_sizes_in_between(searched: Search):
    composition = searched.compositions["plain"]
    large = composition.large
    for size in (2, 8, 16):
        recipe = Recipe(microbatch_size=size)
        searched.simulations.simulate([recipe])
        assert composition.point_bytes(large, size) == pytest.approx(
            searched.simulations.probes[recipe].need_bytes, rel=0.05
        )


def test_copies_hide_behind_the_work_of_more_pieces(planning_pool):
    with planned.planner(planning_pool, place=planned.CARD, batch=planned.batch_of(16, 1024)) as planner:
        planner.search.run(2**40)
        simulations, composition = planner.simulations, planner.search.compositions["plain"]
        offloaded = simulations.need(Recipe(offload_activations="all"))
        assert offloaded.timing.link_seconds > offloaded.timing.host_seconds  # copies decide here, and do not below
        for size in (2, 4, 8):
            seen = simulations.need(Recipe(offload_activations="all", microbatch_size=size))
            plain = simulations.need(Recipe(microbatch_size=size))
            off = plain.seconds / composition.plain_seconds(size)
            assert off * composition.point_seconds(offloaded, size) == pytest.approx(seen.seconds, rel=0.2)


def test_the_least_that_a_step_can_need_is_no_more_than_what_one_needs(searched: Search):
    composition = searched.compositions["plain"]
    for size in (1, 8, 16):
        recipes = [
            Recipe(microbatch_size=None if size == 16 else size, checkpoint=how) for how in ("none", "all", "selective")
        ]
        searched.simulations.simulate(recipes)
        needs = [searched.simulations.probes[recipe].need_bytes for recipe in recipes]
        assert 0.5 * min(needs) < composition.least_bytes(size) <= 1.05 * min(needs)


def test_what_a_choice_of_blocks_does_as_well_gains_nothing(searched: Search):
    composition = searched.compositions["plain"]
    seen = searched.space.seen({"checkpoint": "selective"})
    chosen = composition.chosen(searched.sizes[0], "plain", seen.need_bytes, offloads=False)
    assert composition.gains_by(seen, [seen]) == (chosen is None or seen.seconds < chosen.seconds)
    faster, slower = (dataclasses.replace(seen, seconds=factor * composition.large.seconds) for factor in (0.9, 3))
    assert composition.gains_by(faster, []) and not composition.gains_by(slower, [])


def test_what_is_of_no_use_is_not_tried_again(planning_pool):
    allow = frozenset({"exact", "rounding"})
    with planned.planner(planning_pool, place=planned.CARD, allow=allow, batch=planned.batch_of(16, 256)) as planner:
        planner._no_use.add("checkpoint=selective")
        planner.search.run(2**40)
        assert planner.search.compositions and not any(
            one.checkpoint == "selective" for one in planner.simulations.probes
        )


def test_the_choice_fits_and_no_fewer_blocks_would(searched: Search):
    composition = searched.compositions["plain"]
    size = searched.sizes[0]
    plain, everything = (level_of(composition, range(n)) for n in (0, 4))
    capacity = (plain + everything) / 2
    chosen = composition.chosen(size, "plain", capacity, offloads=False)
    assert chosen is not None and chosen.need_bytes <= capacity
    fewer = chosen.blocks["recompute"][:-1]
    assert level_of(composition, fewer) > capacity
    assert composition.chosen(size, "plain", everything * 0.5, offloads=False) is None


def test_the_solver_agrees_with_counting_from_the_front(searched: Search):
    composition = searched.compositions["plain"]
    size = searched.sizes[0]
    recompute, _ = composition.treatments(size)
    plain, everything = (level_of(composition, range(n)) for n in (0, 4))
    for part in (0.2, 0.5, 0.9):
        room = plain + (everything - plain) * part
        count = composition.levels(size, "plain").first_blocks(room, recompute)
        taken = composition.levels(size, "plain").knapsack(room, [recompute])
        assert level_of(composition, taken) <= room * (1 + 1e-6)
        assert sum(recompute.seconds[i] for i in taken) <= sum(recompute.seconds[:count]) * 1.01


def test_words_for_blocks():
    names = ("a.0", "a.1", "a.2")
    field, by = BY_BLOCK["recompute"]
    assert field == "checkpoint"
    assert [by.value(chosen, names) for chosen in ((), (0, 1, 2), (0, 1), (1, 2))] == [
        "none", "all", "blocks:2", ("a.1", "a.2"),
    ]  # fmt: skip
    assert [by.count(value, 3) for value in ("none", "all", "selective", "blocks:2", "every:2", ("a.1", "a.2"))] == [
        None, 3, None, 2, 2, 2,
    ]  # fmt: skip
