"""Composed recipes against simulated ones: bytes and seconds of choices of blocks and of sizes nobody simulated."""

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
    return composition.level(composition.largest, "plain", dict.fromkeys(checkpointed, recompute))


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
        count = composition._first_blocks(size, "plain", room, recompute)
        taken = composition._knapsack(size, "plain", room, [recompute])
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
