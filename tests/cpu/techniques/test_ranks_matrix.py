"""Models that several processes go through differently: the weights of one plain process, or one message."""

import functools
import os

import pytest
import rank_models
import rank_models_held
import torch
from rank_processes import Ranks

CASES = rank_models.CASES | rank_models_held.CASES


@pytest.fixture(scope="module")
def ranks():
    made = {world: Ranks(world) for world in (2, 3, 4)}
    yield made
    for one in made.values():
        one.end()


@functools.cache
def _alone(name):
    return rank_models.alone(CASES[name])


def _check(case, alone, found, shard):
    """What each rank has is what one process has; where it is refused, all say the same in the words of the case."""
    if shard in case.refused:
        assert {type(one) for one in found} == {str} and len(set(found)) == 1, found
        assert case.words in found[0] and not found[0].startswith("after"), found[0]
        return
    for one in found:
        assert isinstance(one, dict), one
        assert one.keys() == alone.keys()
        worst = max((one[name] - weight).abs().max().item() for name, weight in alone.items() if weight.numel())
        assert worst < case.close, worst


ONCE = [(2, ("none", "gradients")), (3, ("full",))]
"""What all models go through: three processes cut what two divide evenly."""
WHOLE = [(2, ("none", "gradients", "full", "hybrid:2")), (3, ("none", "gradients", "full")), (4, ("hybrid:2",))]
"""Every way on every number of processes that has it: `make matrices`."""


@pytest.mark.parametrize(("world", "shards"), WHOLE if os.environ.get("WHOLE_MATRIX") else ONCE)
@pytest.mark.parametrize("name", CASES)
def test_processes_train_as_one_or_say_why_not(ranks, name, world, shards):
    module = "rank_models" if name in rank_models.CASES else "rank_models_held"
    found = ranks[world].do(rank_models.matrix, module, name, shards)
    for shard in shards:
        _check(CASES[name], _alone(name), [one[shard] for one in found], shard)


FEW = ("blocks", "clipped", "experts, microbatches", "unused", "dropped", "attributes", "mean", "temperature")
"""Models that differ most in what processes do: the others are not gone through in every way."""


@pytest.mark.parametrize("name", FEW)
def test_a_few_in_the_other_ways(ranks, name):
    for world, shard in ((3, "gradients"), (2, "hybrid:2"), (4, "hybrid:2")):
        found = ranks[world].do(rank_models.matrix, "rank_models", name, (shard,))
        _check(CASES[name], _alone(name), [one[shard] for one in found], shard)


def test_groups_of_two_among_two_and_three(ranks):
    (found, again) = ranks[2].do(rank_models.matrix, "rank_models", "blocks", ("hybrid:2", "full"))
    assert all(torch.equal(found["hybrid:2"][name], weight) for name, weight in again["full"].items())
    said = [one["hybrid:2"] for one in ranks[3].do(rank_models.matrix, "rank_models", "blocks", ("hybrid:2",))]
    assert len(set(said)) == 1 and "cannot be divided into" in said[0]


def test_who_draws_for_its_share_says_so(ranks):
    assert ranks[2].do(rank_models.fidelity_of_noise) == [("exact", "different (shard)")] * 2


def test_what_is_written_after_an_evaluation_counts(ranks):
    for found in ranks[2].do(rank_models.written_after_evaluation, ("none", "gradients", "full")):
        assert list(found.values()) == pytest.approx([found["none", False]] * 6, abs=1e-9)
