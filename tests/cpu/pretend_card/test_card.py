"""A pretend card computes as a card does: numbers of the CPU, memory of a card, and no mercy for what does not wait."""

import copy

import pytest
import torch
import torch.nn.functional as F

from snugfit.pretend_card.present import card_present

MIB = 2**20


def _device():
    return torch.device("cuda")


def test_numbers_are_those_of_the_cpu():
    with card_present(64 * MIB):
        made = torch.arange(12.0, device="cuda").view(3, 4)
        assert (made.t() @ made).cpu().equal(torch.arange(12.0).view(3, 4).t() @ torch.arange(12.0).view(3, 4))
        assert made[1, 2].item() == 6 and made.sum().item() == 66


def test_tensors_are_made_of_values_on_the_card():
    with card_present(64 * MIB):
        one, many = torch.tensor(2.0, device="cuda"), torch.tensor([[1, 2], [3, 4]], device="cuda")
        assert (one * 3).item() == 6 and many.sum(0).cpu().tolist() == [4, 6]
        assert torch.cuda.memory_allocated() == 2 * 512
        assert torch.as_tensor([5.0], device="cuda").add_(one).item() == 7


def test_what_depends_on_values_is_answered_with_values():
    with card_present(64 * MIB):
        values = torch.tensor([3.0, -1.0, 0.0, 7.0]).cuda()
        assert values[values > 0].cpu().tolist() == [3.0, 7.0]
        assert torch.nonzero(values < 1).cpu().tolist() == [[1], [2]]
        values[values < 0] = 5.0
        assert values.cpu().tolist() == [3.0, 5.0, 0.0, 7.0]
        for same in (torch.equal, torch.allclose):
            assert same(values, values.clone()) and not same(values, values + 1)
        assert torch.unique(torch.tensor([2, 1, 2]).cuda()).cpu().tolist() == [1, 2]


def test_memory_is_counted_as_on_a_card_and_ends():
    with card_present(40 * MIB) as card:
        held = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() == 5 * MIB
        assert card.memory.allocator.reserved_bytes == 20 * MIB
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 30\.0 MiB"):
            torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        del held
        assert (
            torch.empty(30 * MIB, dtype=torch.uint8, device="cuda").numel() == 30 * MIB
        )  # the cached segment went back
        assert torch.cuda.max_memory_allocated() == 30 * MIB


def test_memory_that_was_not_written_is_poison():
    with card_present(64 * MIB):
        assert torch.empty(1000, device="cuda").cpu().isnan().all()


@pytest.mark.parametrize("waits", [True, False])
def test_a_copy_that_nobody_waits_for_has_not_happened(waits):
    wrong = 0
    for seed in range(20):
        with card_present(64 * MIB, seed=seed):
            host = torch.full((1000,), 4.0).pin_memory()
            target = torch.zeros(1000, device="cuda")
            torch.cuda.synchronize()
            other = torch.cuda.Stream()
            with torch.cuda.stream(other):
                target.copy_(host, non_blocking=True)
            if waits:
                torch.cuda.current_stream().wait_stream(other)
            wrong += (target * 2).sum().item() != 8000
    assert wrong == 0 if waits else wrong >= 15


def test_values_on_their_way_to_the_host_are_there_after_their_event():
    early = 0
    for seed in range(20):
        with card_present(64 * MIB, seed=seed):
            made = torch.full((100,), 2.0, device="cuda")
            host = torch.zeros(100).pin_memory()
            host.copy_(made, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            early += host.sum().item() != 200
            event.synchronize()
            assert event.query() and host.sum().item() == 200
    assert early >= 15


def test_memory_that_was_given_back_too_early_is_overwritten():
    wrong = 0
    for seed in range(20):
        with card_present(64 * MIB, seed=seed):
            made = torch.full((1000,), 3.0, device="cuda")
            host = torch.zeros(1000).pin_memory()
            other = torch.cuda.Stream()
            other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(other):
                host.copy_(made, non_blocking=True)
            del made  # its memory belongs to the default stream, which does not wait for the copy
            torch.full((1000,), 9.0, device="cuda").sum().item()
            other.synchronize()
            wrong += host.sum().item() != 3000
    assert wrong >= 15


def test_pageable_memory_is_read_before_the_call_returns():
    with card_present(64 * MIB):
        host = torch.ones(1000)
        made = host.to("cuda", non_blocking=True)
        host.zero_()
        assert made.sum().item() == 1000
        pinned = torch.ones(1000).pin_memory()
        assert pinned.is_pinned() and not host.is_pinned()


def test_random_numbers_follow_the_seed_and_can_be_put_back():
    with card_present(64 * MIB):
        torch.manual_seed(3)
        first = torch.rand(5, device="cuda").cpu()
        state = torch.cuda.get_rng_state()
        second = torch.rand(5, device="cuda").cpu()
        torch.cuda.set_rng_state(state)
        assert torch.rand(5, device="cuda").cpu().equal(second) and not first.equal(second)
        torch.manual_seed(3)
        assert torch.rand(5, device="cuda").cpu().equal(first)
        before = torch.get_rng_state()
        F.dropout(torch.ones(100, device="cuda")).sum().item()
        assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("at", range(1, 40, 3))
def test_an_operator_that_fails_in_backward_raises_its_own_error(at, monkeypatch):
    """torch ends the process there for accelerators written in Python, unless its device guard takes the error away."""
    with card_present(256 * MIB) as card:
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).cuda()
        loss = model(torch.ones(8, 64, device="cuda")).sum()
        calls, alloc = 0, card.memory.alloc

        def failing(nbytes, **keywords):
            nonlocal calls
            calls += 1
            if calls == at:
                raise torch.OutOfMemoryError("here")
            return alloc(nbytes, **keywords)

        monkeypatch.setattr(card.memory, "alloc", failing)
        if at <= 10:
            with pytest.raises(torch.OutOfMemoryError, match="here"):
                loss.backward()
        else:
            try:
                loss.backward()
            except torch.OutOfMemoryError as error:
                assert str(error) == "here"
            else:
                assert calls < at


def test_a_module_moves_as_to_a_real_card():
    with card_present(64 * MIB):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        model[1].weight = model[0].weight
        before = copy.deepcopy(model.state_dict())
        weight = model[0].weight
        model.cuda()
        assert model[0].weight is weight is model[1].weight and weight.is_cuda
        assert all(value.cpu().equal(before[name]) for name, value in model.state_dict().items())
        model.cpu()
        assert type(model[0].weight) is torch.nn.Parameter and model[0].weight.equal(before["0.weight"])


def test_whole_numbers_are_counted_as_cards_count_them():
    with card_present(64 * MIB):
        counts = torch.histc(torch.tensor([0, 1, 1, 3], dtype=torch.int32).cuda(), bins=4, min=0, max=3)
        assert counts.dtype == torch.int32 and counts.cpu().tolist() == [1, 2, 0, 1]
