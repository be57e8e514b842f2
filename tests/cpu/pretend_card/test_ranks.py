"""Ranks on pretend cards: collectives of gloo in streams that punish, and training that is sharded by them.

What each rank does is in `rank_tasks.py`; the processes are started once for all tests.
"""

import pytest
import rank_tasks
import torch
from rank_tasks import COLLECTIVES, DTYPES, SAMPLES, STEPS
from small_models import cross_entropy, make_batches, make_model

SEEDS = range(3)


def _plain(name, clip=False):
    """One process with the whole batch, on the CPU."""
    model = make_model(name).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for batch in make_batches(name, SAMPLES, STEPS):
        cross_entropy(model(batch[0]), batch).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def _error(trained, wanted):
    """The largest difference of any rank's weights, which are of the order of 1; infinite where one is no number."""
    errors = [(weights[name] - want).abs().max() for weights in trained for name, want in wanted.items()]
    return torch.stack(errors).nan_to_num(torch.inf).max().item()


def test_collectives_give_what_gloo_gives(two):
    for found in two.do(rank_tasks.compare_collectives, 0):
        assert len(found) == len(COLLECTIVES) * len(DTYPES) + 1
        assert all(found.values()), [name for name, right in found.items() if not right]


@pytest.mark.parametrize(
    ("task", "wrong_at_least"), [(rank_tasks.reduce_beside, 4), (rank_tasks.free_under_another_stream, 3)]
)
def test_what_is_not_waited_for_is_wrong(two, task, wrong_at_least):
    answers = [two.do(task, seed, False) for seed in range(6)]
    assert sum(not all(right) for right in answers) >= wrong_at_least
    assert all(all(two.do(task, seed, True)) for seed in range(6))


def test_work_keeps_its_tensors_until_it_is_waited_for(two):
    assert all(all(two.do(rank_tasks.give_up_before_waiting, seed)) for seed in range(6))


def test_crossing_groups_never_wait_for_each_other(four):
    for seed in SEEDS:
        answers = four.do(rank_tasks.mix_groups, seed)
        assert answers == [answers[0]] * 4  # once rows and columns were summed


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_reduced_by_hand_train_as_one_process(two, seed):
    assert _error(two.do(rank_tasks.train_by_hand, seed), _plain("mlp")) < 1e-9


@pytest.mark.parametrize(
    ("fields", "seeds"),
    [({"reshard": True}, SEEDS), ({"reshard": False}, SEEDS), ({"clip": True}, [3]), ({"offload": True}, [4])],
    ids=["reshard", "no_reshard", "clip", "offload"],
)
def test_sharded_training_is_plain_training(two, fields, seeds):
    wanted = _plain("vit", fields.get("clip", False))
    for seed in seeds:
        assert _error(two.do(rank_tasks.train_sharded, seed, *_in_order(**fields)), wanted) < 1e-9


def test_sharded_in_groups_is_plain_training(four):
    assert _error(four.do(rank_tasks.train_sharded, 1, *_in_order(groups=2)), _plain("vit")) < 1e-9


def test_a_forgotten_wait_trains_something_else(two):
    by_hand, sharded = _plain("mlp"), _plain("vit")
    errors = [_error(two.do(rank_tasks.train_by_hand, seed, False), by_hand) for seed in SEEDS]
    assert sum(error > 1e-6 for error in errors) >= 2
    errors = [_error(two.do(rank_tasks.train_sharded, seed, *_in_order(waits=False)), sharded) for seed in (0, 1)]
    assert max(errors) > 1e-6


def test_shards_take_a_share_of_memory_on_every_rank(two):
    (before, peak, reserved), *others = two.do(rank_tasks.count_memory, 0, True)
    assert others == [(before, peak, reserved)]
    whole_before, whole_peak, _ = two.do(rank_tasks.count_memory, 0, False)[0]
    assert before == whole_before / 2
    assert whole_peak * 0.5 < peak < whole_peak


def _in_order(*, reshard=True, offload=False, groups=1, waits=True, clip=False):
    return reshard, offload, groups, waits, clip
