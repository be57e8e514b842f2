"""Models that several processes go through differently: the weights of one plain process, or one message."""

import functools

import pytest
import rank_models
from rank_models import CASES
from rank_processes import Ranks


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
        worst = max((one[name] - weight).abs().max().item() for name, weight in alone.items())
        assert worst < case.close, worst


@pytest.mark.parametrize(
    ("world", "shards"), [(2, ("none", "gradients", "full")), (3, ("none", "full")), (4, ("hybrid:2",))]
)
@pytest.mark.parametrize("name", CASES)
def test_processes_train_as_one_or_say_why_not(ranks, name, world, shards):
    found = ranks[world].do(rank_models.matrix, [name], shards)
    for shard in shards:
        _check(CASES[name], _alone(name), [one[name, shard] for one in found], shard)
