"""Evaluation gives the same numbers as one pass over everything, and leaves no trace in the training."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import snugfit
from snugfit.phases import listen
from snugfit.recipe import Recipe
from snugfit.training.evaluation import add_up, read, task_of
from snugfit.workloads.tasks import task_named


def evaluate(trainer, batches, task, **stop):
    sums = add_up(trainer, batches, task, **stop)
    return None if sums is None else read(sums, task)


TASK = task_named("image-classification")


class Draws(nn.Module):
    """Draws random numbers even in eval mode, as some models do."""

    def forward(self, x):
        return x + 0 * torch.rand_like(x) + 0 * random.random() + 0 * np.random.rand()


def trainer_of(model, **recipe):
    return snugfit.prepare(model, Recipe(**recipe), loss=TASK.loss, device="cpu", batch_size=8)


def samples(count):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def cut(images, labels, size):
    return [(images[i : i + size], labels[i : i + size]) for i in range(0, len(images), size)]


@pytest.mark.parametrize("size", [1, 4, 7, 30])
def test_means_are_over_samples_however_they_are_cut(size):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))
    images, labels = samples(30)
    found = evaluate(trainer_of(model), cut(images, labels, size), TASK)
    with torch.no_grad():
        output = model[0](images)
    assert found.samples == 30
    assert found.loss == pytest.approx(nn.functional.cross_entropy(output, labels).item(), rel=1e-6)
    assert found.metrics == {"accuracy": pytest.approx((output.argmax(1) == labels).float().mean().item(), abs=1e-7)}


@pytest.mark.parametrize("size", [4, 30])
@pytest.mark.parametrize("loss_weight, reduction", [("tokens", "mean"), ("sum", "sum")])
def test_own_losses_are_means_over_what_counts(size, loss_weight, reduction):
    torch.manual_seed(0)
    model, (images, labels) = nn.Linear(6, 3), samples(30)
    labels[::3] = -100
    labels[4:8] = -100  # a whole batch

    def loss(output, batch):
        return nn.functional.cross_entropy(output, batch[1], reduction=reduction)

    trainer = snugfit.prepare(model, Recipe(), loss=loss, loss_weight=loss_weight, device="cpu", batch_size=8)
    found = evaluate(trainer, cut(images, labels, size), task_of(loss, loss_weight))
    whole = loss(model(images), (images, labels)).item()
    assert found.loss == pytest.approx(whole if loss_weight == "tokens" else whole / 30, rel=1e-6)


def test_training_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(6, 3), Draws(), nn.BatchNorm1d(3), nn.Dropout(0.5))
    trainer = trainer_of(model)
    model.train()
    model[2].eval()  # a layer that its owner keeps frozen
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(3).tolist()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    evaluate(trainer, cut(*samples(9), 4), TASK)
    assert (random.random(), np.random.rand(), torch.rand(3).tolist()) == expected
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())


def test_stop_gives_up_and_the_phase_is_marked():
    trainer = trainer_of(nn.Linear(6, 3))
    marks = []
    with listen(lambda name, entered: marks.append((name, entered))):
        assert evaluate(trainer, cut(*samples(9), 4), TASK, stop=lambda: True) is None
        assert evaluate(trainer, cut(*samples(9), 4), TASK) is not None
    assert [mark for mark in marks if mark[0] == "evaluation"] == [("evaluation", True), ("evaluation", False)] * 2
    assert evaluate(trainer, [], TASK) is None


def test_runs_under_the_recipe_autocast():
    seen = []

    class Spy(nn.Linear):
        def forward(self, x):
            output = super().forward(x)
            seen.append(output.dtype)
            return output

    evaluate(trainer_of(Spy(6, 3), precision="bf16-mixed"), cut(*samples(4), 4), TASK)
    assert seen == [torch.bfloat16]
