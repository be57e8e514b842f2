"""Recipes that promise about as much, timed in the first steps: which is kept, when none is, and what is learned."""

import dataclasses
import types

import pytest
import torch
from small_models import MLP

import snugfit
from snugfit.errors import InputError
from snugfit.recipe import Recipe
from snugfit.training import tuning
from snugfit.training.tuning import COUNTED, ONCE_MORE, WARM_UP, Tuning, steps_for

PLAIN, AGAIN, PIECES = Recipe(), Recipe(checkpoint="all"), Recipe(microbatch_size=2)


def batch(samples=8):
    make = torch.Generator().manual_seed(samples)
    return torch.randn(samples, 12, generator=make, dtype=torch.float64), torch.arange(samples) % 5


def prepared(recipe=PLAIN, **given):
    torch.manual_seed(0)
    loss = torch.nn.CrossEntropyLoss()
    return snugfit.prepare(MLP().double(), recipe, loss=loss, optimizer="adamw", lr=1e-2, device="cpu", **given)


class Clock:
    """A step takes what its recipe says, and the first by a recipe ten times as long."""

    def __init__(self, trainer, seconds):
        self.trainer, self.seconds, self.now, self.last, self.asked = trainer, seconds, 0.0, None, 0

    def __call__(self):
        self.asked += 1
        if self.asked % 2 == 0:
            recipe = self.trainer.recipe
            self.now += self.seconds[recipe] * (1 if recipe == self.last else 10)
            self.last = recipe
        return self.now


@pytest.fixture
def tuned(monkeypatch):
    def train(seconds, steps=30, batches=None):
        trainer = prepared()
        trainer.tuning = found = Tuning([(recipe, 0.5) for recipe in seconds])
        clock = Clock(trainer, seconds)
        monkeypatch.setattr(tuning, "work_clock", lambda device: clock)
        for number in range(steps):
            trainer.step(batch() if batches is None else batches[number % len(batches)])
        trainer.finish()
        return trainer, found

    return train


@pytest.mark.parametrize("fastest", [PLAIN, AGAIN, PIECES])
def test_the_fastest_is_kept_after_few_steps(tuned, fastest):
    trainer, found = tuned({recipe: 1.0 if recipe == fastest else 2.0 for recipe in (PLAIN, AGAIN, PIECES)})
    assert trainer.recipe == found.kept == fastest and trainer.tuning is None
    again = fastest != PLAIN  # the plan's recipe is timed once more before it goes
    assert found.steps == steps_for(3) - (0 if again else WARM_UP + ONCE_MORE) and steps_for(4) <= 20
    assert [one.seconds for one in found.candidates].count(1.0) == 1
    assert [len(one.times) for one in found.candidates] == [COUNTED + again * ONCE_MORE, COUNTED, COUNTED]
    told = found.to_mapping()
    assert told["recipe"] == fastest.to_mapping() and [one["kept"] for one in told["tried"]].count(True) == 1


def test_weights_are_those_of_a_run_that_never_changed_its_recipe(tuned):
    trainer, found = tuned({PLAIN: 2.0, AGAIN: 1.5, PIECES: 1.0})
    other = prepared()
    for _ in range(30):
        other.step(batch())
    other.finish()
    assert found.kept == PIECES
    for mine, theirs in zip(trainer.model.parameters(), other.model.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-9)


def test_a_little_faster_is_noise(tuned):
    assert tuned({PLAIN: 1.0, AGAIN: 0.98})[1].kept == PLAIN
    assert tuned({PLAIN: 1.0, AGAIN: 0.96})[1].kept == AGAIN


def test_a_busy_machine_does_not_cost_the_plan_its_place(monkeypatch):
    """The machine is slow in the plan's first steps only."""
    trainer = prepared()
    trainer.tuning = found = Tuning([(PLAIN, 0.5), (AGAIN, 0.5)])
    clock = Clock(trainer, {PLAIN: 9.0, AGAIN: 1.1})
    monkeypatch.setattr(tuning, "work_clock", lambda device: clock)
    while trainer.tuning is not None:
        trainer.step(batch())
        if trainer.recipe == AGAIN:
            clock.seconds[PLAIN] = 1.0
    assert found.kept == PLAIN and found.steps == steps_for(2)


def test_batches_of_different_lengths_are_compared_by_the_element(tuned, monkeypatch):
    """The second recipe meets the short batches, and is slower for its samples."""
    trainer = prepared()
    trainer.tuning = found = Tuning([(PLAIN, 0.5), (AGAIN, 0.5)])
    size = types.SimpleNamespace(now=8)
    clock = Clock(trainer, {PLAIN: 1.0, AGAIN: 1.0})
    clock.seconds = {PLAIN: 8.0, AGAIN: 2 * 1.5}
    monkeypatch.setattr(tuning, "work_clock", lambda device: clock)
    while trainer.tuning is not None:
        size.now = 8 if trainer.recipe == PLAIN else 2
        trainer.step(batch(size.now))
    assert found.kept == PLAIN and found.candidates[1].seconds < found.candidates[0].seconds


def test_where_memory_ran_out_nothing_more_is_tried(tuned, monkeypatch):
    trainer = prepared(fallbacks=[PIECES])
    ended = []
    trainer.tuning = found = Tuning([(PLAIN, 0.5), (AGAIN, 0.5)])
    found.on_end = ended.append
    real = trainer._recovery.step

    def step(trainer, batch, kept):
        if trainer.steps_done == 1 + WARM_UP + COUNTED + 1:
            trainer.take_next_fallback()
        return real(trainer, batch, kept)

    monkeypatch.setattr(trainer._recovery, "step", step)
    for _ in range(12):
        trainer.step(batch())
    assert trainer.recipe == found.kept == PIECES and ended == [found] and trainer.tuning is None
    assert "memory" in found.to_mapping()["tried"][1]["left_out"] and found.candidates[1].seconds is None


def test_what_cannot_be_put_in_place_is_left_out(monkeypatch):
    trainer = prepared()
    trainer.tuning = found = Tuning([(PLAIN, 0.5), (PIECES, 0.5), (AGAIN, 0.5)])
    real = trainer.put_in_place

    def put(recipe):
        if recipe == PIECES:
            raise InputError("not this model")
        real(recipe)

    monkeypatch.setattr(trainer, "put_in_place", put)
    while trainer.tuning is not None:
        trainer.step(batch())
    assert found.candidates[1].left_out and found.candidates[2].seconds is not None and trainer.steps_done >= 9


def test_fallbacks_stay_what_they_are_for_the_plan(tuned):
    trainer = prepared(fallbacks=[PIECES, AGAIN])
    trainer.tuning = Tuning([(PLAIN, 1.0), (AGAIN, 1.0)])
    while trainer.tuning is not None:
        trainer.step(batch())
    if trainer.recipe == PLAIN:
        assert trainer.take_next_fallback() and trainer.recipe == PIECES


@dataclasses.dataclass
class Plan:
    recipe: Recipe
    step_seconds: float
    rivals: tuple


def test_a_plan_is_tuned_where_that_is_asked_for():
    plan = Plan(PLAIN, 1.0, (types.SimpleNamespace(recipe=AGAIN, step_seconds=1.1),))
    assert prepared(plan).tuning is None and prepared(plan, tune=True).tuning is not None
    assert prepared(dataclasses.replace(plan, rivals=()), tune=True).tuning is None
    with pytest.raises(InputError, match="tune=True times the rivals that a plan names"):
        prepared(PLAIN, tune=True)
