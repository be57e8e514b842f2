"""What goes between host and card beside the compute is waited for, is page-locked, and is let go when it has arrived.

Each of these needs one call in the code that copies; `tests/card_mutants.py` takes them out one by one.
"""

import math
import weakref

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model

import snugfit
from snugfit import Recipe, TrainingError
from snugfit.pretend_card.present import card_present
from snugfit.techniques.base import Setup
from snugfit.techniques.host_pool import HostPool
from snugfit.techniques.offload_activations.apply import ActivationOffload
from snugfit.techniques.streams import CopyStream
from snugfit.training.health import DEPTH, Health, LateValues
from snugfit.workloads.loader import batches

SEEDS = 20


@pytest.fixture
def card():
    with card_present(None, seed=1) as present:
        yield present


def _setup(card, **fields):
    device = card.personality.device
    return Setup(
        recipe=Recipe(**fields), workload=snugfit.Workload(), device=device, pool=HostPool(device),
        copies=CopyStream(device),
    )  # fmt: skip


def _offload(card):
    technique = ActivationOffload(_setup(card, offload_activations="all"))
    technique.watch(torch.nn.Identity())
    return technique


def _prepared(card, **fields):
    model = make_model("mlp", torch.float32)
    return snugfit.prepare(model, Recipe(**fields), loss=cross_entropy, device=card.personality.device)


# -- streams


def test_copies_and_compute_wait_for_each_other():
    for seed in range(SEEDS):
        with card_present(None, seed=seed) as card:
            device = card.personality.device
            copies, pool = CopyStream(device), HostPool(device)
            given, got = pool.empty((1000,), torch.float32), pool.empty((1000,), torch.float32)
            given.fill_(4)
            target = torch.zeros(1000, device=device)
            with copies.copying(after=copies.compute_mark()):
                target.copy_(given, non_blocking=True)  # not before the zeros
            copies.compute_waits_for(copies.copy_mark())
            target.mul_(2)  # not before the copy
            with copies.copying(after=copies.compute_mark()):
                got.copy_(target, non_blocking=True)
            copies.host_waits_for(copies.copy_mark())
            assert got.eq(8).all(), seed


def test_the_pool_is_page_locked_and_counts_what_lives(card):
    pool = HostPool(card.personality.device)
    held = pool.empty((10, 10), torch.float32)
    assert held.is_pinned() and pool.nbytes == 400
    del held
    assert pool.nbytes == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"precision": "16-mixed"},
        {"offload_activations": "all"},
        {"offload_activations": "checkpoints", "checkpoint": "all"},
    ],
)
def test_a_step_does_not_wait_for_the_card(card, fields):
    """Every copy to or from memory that is not page-locked would."""
    trainer = _prepared(card, **fields)
    first, *others = [[part.cuda() for part in batch] for batch in make_batches("mlp", 64, 4, torch.float32)]
    trainer.step(tuple(first))
    card.sync_debug_mode = "error"
    for batch in others:
        trainer.step(tuple(batch))
    card.sync_debug_mode = "default"
    trainer.finish()


# -- activations


def test_a_tensor_that_came_back_is_let_go_by_its_last_user(card):
    technique = _offload(card)
    with technique.new_pass():
        stashed = technique._pack(torch.ones(1000, device=card.personality.device))
    before = torch.cuda.memory_allocated()
    came = technique.fetch(stashed)
    assert torch.cuda.memory_allocated() > before and technique.fetch(stashed) is came
    del came
    assert torch.cuda.memory_allocated() == before


def test_the_account_of_a_pass_ends_with_the_next(card):
    technique, kept = _offload(card), []
    for _ in range(3):
        with technique.new_pass():
            kept.append(technique._pack(torch.ones(1000, device=card.personality.device)))
        assert len(technique._stashed) == 1


def test_memory_of_a_tensor_that_left_is_taken_again_after_its_copy():
    for seed in range(SEEDS):
        with card_present(None, seed=seed) as card:
            technique = _offload(card)
            with technique.new_pass():
                stashed = technique._pack(torch.full((1000,), 3.0, device=card.personality.device))
            overwritten = torch.full((1000,), 9.0, device=card.personality.device)
            assert technique.fetch(stashed).eq(3).all().item(), seed
            assert overwritten.eq(9).all().item()


def test_memory_of_a_copy_that_nobody_took_is_taken_again_after_it():
    for seed in range(SEEDS):
        with card_present(None, seed=seed) as card:
            technique = _offload(card)
            with technique.new_pass():
                stashed = technique._pack(torch.full((1000,), 3.0, device=card.personality.device))
            stashed.start()
            del stashed
            made = torch.full((1000,), 9.0, device=card.personality.device)
            total = made.sum()
            technique.setup.copies.host_waits_for(technique.setup.copies.copy_mark())
            assert total.item() == 9000 and made.eq(9).all().item(), seed


# -- optimizer state


def test_a_gradient_that_has_arrived_is_let_go(card):
    trainer = _prepared(card, offload_optimizer=True)
    part = trainer.update.parts[0]
    for ends in (part.arrived, part.forget):
        part.weight.grad = torch.ones_like(part.weight)
        gone = weakref.ref(part.weight.grad.untyped_storage())
        held = torch.cuda.memory_allocated()
        part.start()
        assert part.weight.grad is None and torch.cuda.memory_allocated() == held
        ends()
        assert torch.cuda.memory_allocated() < held and gone() is None
        assert part.gradient.eq(1).all()


def test_gradients_on_their_way_are_forgotten_with_their_step(card):
    batch = make_batches("mlp", 64, 1, torch.float32)[0]
    weights = []
    for stops in (False, True):
        trainer = _prepared(card, offload_optimizer=True, step_in_backward=True)
        if stops:

            def stop(_):
                raise RuntimeError("in the middle of backward")

            handle = trainer.model.head.weight.register_hook(stop)  # its bias has left already
            with pytest.raises(RuntimeError, match="in the middle"):
                trainer.step(batch)
            handle.remove()
            assert not trainer.update._leaving and all(part._arriving is None for part in trainer.update.parts)
        trainer.step(batch)
        trainer.finish()
        weights.append([weight.detach().cpu() for weight in trainer.model.parameters()])
    assert all(one.equal(other) for one, other in zip(*weights, strict=True))


@pytest.mark.parametrize("in_backward", [False, True])
def test_what_is_written_between_steps_reaches_the_host(in_backward):
    """By `data`, which torch does not count."""
    data, weights = make_batches("mlp", 64, 3, torch.float32), []
    for seed, offload in ((1, False), *((seed, True) for seed in range(5))):
        with card_present(None, seed=seed) as card:
            trainer = _prepared(card, offload_optimizer=offload, step_in_backward=offload and in_backward)
            for number, batch in enumerate(data):
                for weight in trainer.model.parameters() if number else ():
                    weight.data.clamp_(-0.05, 0.05)
                trainer.step(batch)
            trainer.finish()
            weights.append([weight.detach().cpu() for weight in trainer.model.parameters()])
    for each in weights[1:]:
        for one, other in zip(weights[0], each, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


# -- health


def test_late_values_are_read_when_they_are_there():
    for seed in range(SEEDS):
        with card_present(None, seed=seed) as card:
            late, found = LateValues(card.personality.device), []
            for step in range(6):
                late.put(step, torch.full((2,), float(step), device=card.personality.device))
                found += late.arrived()
                assert len(found) >= step - DEPTH
            assert found + late.arrived(wait=True) == [(step, [float(step)] * 2) for step in range(6)]


def test_values_that_are_not_there_are_not_waited_for(card):
    late = LateValues(card.personality.device)
    late.put(1, torch.ones(2, device=card.personality.device))
    assert late.arrived() == []


def test_what_came_after_a_bad_step_is_forgotten(card):
    device = card.personality.device
    health = Health(device, "fp32")
    bad = torch.tensor(math.nan, device=device)
    for step in range(1, DEPTH + 2):
        health.report(step, bad, health.mask(bad))
    with pytest.raises(TrainingError, match="step 1"):
        health.check()
    health.check(wait=True)
    assert health.mask(torch.ones((), device=device)).item() == 0


# -- loading


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_page_locked(card, workers):
    data = [(torch.full((2,), float(number)), number) for number in range(6)]
    for wanted in (True, False):
        found = list(batches(data, batch_size=3, seed=0, epoch=0, shuffle=False, workers=workers, pin_memory=wanted))
        assert [labels.tolist() for _, labels in found] == [[0, 1, 2], [3, 4, 5]]
        assert all(part.is_pinned() == wanted for batch in found for part in batch)
