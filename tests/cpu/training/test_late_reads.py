"""Models that read a weight after its update in the middle of backward are refused before anything moves.

Plans go around them. All others train as plainly: float64 losses and weights after three steps, also with state on the host.
"""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import snugfit
from snugfit import InputError, Recipe

WIDTH = 16


class Looked(torch.autograd.Function):
    """Looks its weight up in backward, where no version counter sees it."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        return F.linear(x, layer.weight)

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.layer.weight, None


def detached(x, first, last):
    return F.linear(x, last.weight.detach())


def data(x, first, last):
    return F.linear(x, last.weight.data)


def view_without_gradient(x, first, last):
    with torch.no_grad():
        view = last.weight.view(WIDTH, WIDTH)
    return F.linear(x, view)


def looked_up(x, first, last):
    return Looked.apply(x, last)


def computed_again(x, first, last):
    return checkpoint(lambda x: torch.tanh(F.linear(x, last.weight.detach())) * first(x), x, use_reentrant=False)


def again_without_gradient(x, first, last):
    def block(x):
        with torch.no_grad():
            scale = last(x)
        return torch.tanh(first(x)) * scale

    return checkpoint(block, x, use_reentrant=False)


def in_pieces(x, first, last):
    return checkpoint(lambda x: torch.tanh(last(x)), x, use_reentrant=True)


def twice(x, first, last):
    return last(torch.tanh(last(x)))


def shared_blocks(x, first, last):
    for layer in (last, first, last):
        x = checkpoint(lambda x, layer=layer: torch.tanh(layer(x)), x, use_reentrant=False)
    return x


def views_with_gradient(x, first, last):
    return F.linear(x, last.weight.view(-1).view(WIDTH, WIDTH).t())


def reentrant_of_its_own(x, first, last):
    return checkpoint(lambda x: torch.tanh(first(x)), x, use_reentrant=True)


LATE = [detached, data, view_without_gradient, looked_up, computed_again, again_without_gradient, in_pieces]
IN_TIME = [twice, shared_blocks, views_with_gradient, reentrant_of_its_own]
RECIPES = [
    {"step_in_backward": True},
    {"step_in_backward": True, "offload_optimizer": True},
    {"step_in_backward": True, "checkpoint": "middle"},
]


class Middle(nn.Module):
    def __init__(self, way, first, last):
        super().__init__()
        self.way, self.first, self.held = way, first, [last]

    def forward(self, x):
        return self.way(x, self.first, self.held[0])


class Net(nn.Module):
    """A middle that uses the last layer, in some way, before that one has its turn."""

    def __init__(self, way):
        super().__init__()
        self.begin, first, self.last = (nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(3))
        self.norm, self.drop = nn.BatchNorm1d(WIDTH, dtype=torch.float64), nn.Dropout(0.2)
        self.middle = Middle(way, first, self.last)

    def forward(self, x):
        x = torch.tanh(self.begin(x))
        x = self.drop(self.norm(x + torch.tanh(self.middle(x))))
        return self.last(x)


def made(way):
    torch.manual_seed(0)
    return Net(way), [tuple(torch.randn(2, 6, WIDTH, dtype=torch.float64)) for _ in range(3)]


def loss(output, batch):
    return F.mse_loss(output, batch[1])


def trainer_of(model, fields):
    return snugfit.prepare(model, Recipe(**fields), loss=loss, optimizer="sgd", lr=0.1, momentum=0.9, device="cpu")


@pytest.mark.parametrize("fields", RECIPES, ids=str)
@pytest.mark.parametrize("way", LATE)
def test_late_reads_are_refused_before_anything_moves(way, fields):
    model, (batch, *_) = made(way)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = trainer_of(model, fields)
    drawn = torch.get_rng_state()
    with pytest.raises(
        InputError, match=r"step_in_backward updates each weight .* last\.(weight|bias) is read once more"
    ):
        trainer.step(batch)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(drawn, torch.get_rng_state())
    assert all(weight.grad is None for weight in model.parameters()) and trainer.steps_done == 0


@pytest.mark.parametrize("fields", RECIPES, ids=str)
@pytest.mark.parametrize("way", IN_TIME)
def test_what_is_read_in_time_trains_as_plainly(way, fields):
    def run(snug):
        model, batches = made(way)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        trainer = trainer_of(model, fields) if snug else None
        losses = []
        for number, batch in enumerate(batches):
            torch.manual_seed(number)
            if trainer:
                losses.append(trainer.step(batch).item())
                continue
            optimizer.zero_grad()
            found = loss(model(batch[0]), batch)
            found.backward()
            optimizer.step()
            losses.append(found.item())
        return losses, list(model.state_dict().values())

    (losses, weights), (expected, wanted) = run(True), run(False)
    assert losses == pytest.approx(expected, rel=1e-12)
    for got, want in zip(weights, wanted, strict=True):
        assert torch.allclose(got.double(), want.double(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("way", [one for one in LATE if one is not in_pieces])
def test_a_simulation_refuses_the_same(way, pool):
    model, (batch, *_) = made(way)
    with pytest.raises(InputError, match=r"last\.(weight|bias) is read once more"):
        snugfit.estimate(
            model, batch, loss=loss, recipe=Recipe(step_in_backward=True), optimizer="sgd", device="cpu", pool=pool
        )


@pytest.mark.parametrize("way", IN_TIME)
def test_a_simulation_lets_the_others_pass(way, pool):
    model, (batch, *_) = made(way)
    for fields in RECIPES:
        assert snugfit.estimate(
            model, batch, loss=loss, recipe=Recipe(**fields), device="cpu", pool=pool
        ).peak_allocated_bytes


def test_plans_go_around_it(pool):
    model, (batch, *_) = made(detached)
    others = ("microbatch_size", "checkpoint", "offload_activations", "init", "inplace", "optimizer_impl", "loss_impl")
    given = {"loss": loss, "optimizer": "sgd", "device": "cpu", "pool": pool, "forbid": others}
    with pytest.raises(snugfit.DoesNotFitError) as caught:
        snugfit.plan(model, batch, budget=2**10, **given)
    assert "plain" in str(caught.value) and "step_in_backward=True" not in str(caught.value)


def test_a_model_of_chance_is_not_accused():
    """Where two plain passes differ by numbers that nobody can put back, nothing is said."""
    dice = random.SystemRandom()
    model, (batch, *_) = made(lambda x, first, last: first(x) * dice.random())
    trainer_of(model, {"step_in_backward": True}).step(batch)


def test_what_is_unfrozen_later_is_tried_too():
    model, (batch, *_) = made(detached)
    model.last.requires_grad_(False)
    trainer = trainer_of(model, {"step_in_backward": True})
    trainer.step(batch)
    model.last.requires_grad_(True)
    with pytest.raises(InputError, match=r"last.weight is read once more"):
        trainer.step(batch)
