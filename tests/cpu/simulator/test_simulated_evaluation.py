"""Evaluation in an estimate is that of the loop: its code, its batches, its loss and metrics; or none at all."""

from __future__ import annotations

import functools
import importlib
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snugfit
from snugfit.fake_device.personality import Personality
from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.phases import listen
from snugfit.recipe import Recipe
from snugfit.recording.replay import replay
from snugfit.recording.tensor_bytes import TensorBytes
from snugfit.simulator.given_training import simulate_training
from snugfit.workloads.tasks import task_named

CARD = "a100-40gb"
WORDS, WIDTH = 20_000, 64
SAMPLES, TOKENS = 64, 32


class Language(nn.Module):
    """Its scores over the words are most of what it needs."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        return self.head(self.words(tokens))


class WideInEvaluation(nn.Module):
    """Makes more in evaluation than in training, as models do that return all they have."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        hidden = self.layer(x)
        if not self.training:
            hidden = torch.stack([hidden * i for i in range(20)]).mean(0)
        return self.head(hidden)


def word_loss(output, batch):
    return F.cross_entropy(output.flatten(0, 1), batch[1].flatten())


def class_loss(output, batch):
    return F.cross_entropy(output, batch[1])


def tokens():
    return torch.zeros(SAMPLES, TOKENS, dtype=torch.int64), torch.zeros(SAMPLES, TOKENS, dtype=torch.int64)


def features():
    return torch.randn(256, 64), torch.zeros(256, dtype=torch.int64)


def estimated(**changes):
    recipe = Recipe(**{key: changes.pop(key) for key in ("microbatch_size", "loss_impl") if key in changes})
    return snugfit.estimate(Language, tokens(), loss=word_loss, recipe=recipe, device=CARD, **changes)


def test_evaluation_goes_through_in_microbatches_so_it_is_no_floor():
    """It was: one forward pass of the whole batch, whose scores no training step ever makes."""
    whole_scores = SAMPLES * TOKENS * WORDS * 4
    one = estimated(microbatch_size=1)
    assert one.peak_phase != "evaluation"
    assert one.peak_allocated_bytes < whole_scores
    assert "evaluation" in one.trace.phases


@pytest.mark.parametrize("size", [None, 4, 1])
def test_without_evaluation_there_is_none_of_it(size):
    assert "evaluation" not in estimated(microbatch_size=size, evaluate=False).trace.phases


def test_plans_take_the_same_switch():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = snugfit.plan(
            WideInEvaluation, features(), loss=class_loss, budget="2GiB", device=CARD, evaluate=False, optimizer="sgd"
        )
    assert "evaluation" not in plan.estimate.trace.phases


def measured(make, batch, loss, recipe):
    take_course = importlib.import_module("benchmarks.held_out").take_course
    warm_up()
    events = AllocatorEvents()
    events.start()
    # Whether samples are coupled is tried before the first update; what that holds for a moment is not part of the step.
    trainer = snugfit.prepare(make(), recipe, loss=loss, device="cpu", optimizer="sgd", coupled_samples=False)
    take_course(trainer, batch, {"loss": loss}, steps=2)
    events.stop()
    return events.peak_bytes


@pytest.mark.parametrize("size", [None, 64, 8])
def test_the_predicted_peak_of_an_evaluation_is_the_measured_one(size, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3]))
    recipe = Recipe(microbatch_size=size)
    recording = simulate_training(
        WideInEvaluation,
        recipe,
        features(),
        personality=Personality(kind="cpu", threads=torch.get_num_threads()),
        arguments={"loss": class_loss, "optimizer": "sgd"},
    )
    played = replay(recording.trace, TensorBytes())
    if size in (None, 64):
        assert played.peak_phase == "evaluation"
    assert played.peak_allocated_bytes == pytest.approx(
        measured(WideInEvaluation, features, class_loss, recipe), rel=0.01
    )


def test_the_metrics_of_a_task_are_evaluated_too():
    """Accuracy takes the place of the highest score of each sample, which the loss alone does not."""
    task = task_named("image-classification")

    def operators(task):
        recording = simulate_training(
            functools.partial(nn.Linear, 64, 10),
            Recipe(),
            features(),
            task=task,
            arguments={"loss": class_loss, "optimizer": "sgd"},
        )
        return {run.operator for run in recording.trace.runs if run.phase == "evaluation"}

    assert "aten.argmax.default" in operators(task)
    assert "aten.argmax.default" not in operators(None)
    assert "aten._log_softmax.default" in operators(None)


def test_a_loss_that_takes_gradients_of_its_own_trains_and_its_evaluation_is_left_out_with_a_word():
    def penalty(output, batch):
        (slope,) = torch.autograd.grad(output.sum(), batch["x"], create_graph=True)
        return class_loss(output, (None, batch["y"])) + slope.square().mean()

    def forward(model, batch):
        batch["x"].requires_grad_(True)
        return model(batch["x"])

    batch = dict(zip(("x", "y"), features(), strict=True))
    given = {"loss": penalty, "forward": forward, "device": CARD, "optimizer": "sgd"}
    make = functools.partial(nn.Linear, 64, 10)
    with pytest.warns(snugfit.SnugfitWarning, match="evaluation is left out .* evaluate=False"):
        found = snugfit.estimate(make, batch, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert snugfit.estimate(make, batch, evaluate=False, **given).flops == found.flops


def test_evaluation_drops_the_scores_of_a_batch_before_the_next():
    """Two batches at a time would be twice the scores."""
    from snugfit.training.evaluation import add_up

    trainer = snugfit.prepare(Language(), Recipe(microbatch_size=1), loss=word_loss, device="cpu", optimizer="sgd")
    inputs, labels = tokens()

    def peak(count):
        events = AllocatorEvents()
        events.start()
        add_up(trainer, [(inputs[:1], labels[:1])] * count, _words_task())
        events.stop()
        return events.peak_bytes

    peak(1)
    assert peak(4) < 1.2 * peak(1)


def _words_task():
    from snugfit.workloads.tasks import task_of_loss

    return task_of_loss(word_loss)


def test_phases_of_a_real_evaluation_are_those_of_a_simulated_one():
    from snugfit.training.evaluation import add_up

    seen = []
    trainer = snugfit.prepare(nn.Linear(64, 10), Recipe(), loss=class_loss, device="cpu", optimizer="sgd")
    with listen(lambda name, entered: seen.append(name) if entered else None):
        add_up(trainer, [features()], task_named("image-classification"))
    assert seen == ["evaluation"]
