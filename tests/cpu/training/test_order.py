"""A technique can bring another order of the microbatches, and neither step, update nor simulator know of it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snugfit
from snugfit import Recipe
from snugfit.fake_device.personality import Personality
from snugfit.recording.replay import replay
from snugfit.simulator.given_training import record_given
from snugfit.techniques.checkpoint.apply import Checkpointing
from snugfit.training.order import weighted

BATCH = torch.randn(16, 64), torch.arange(16) % 4


def loss(output, batch):
    return F.cross_entropy(output, batch[1])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x):
        return x + self.inner(x)


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Sequential(*(Block() for _ in range(3))), nn.Linear(64, 4))


def all_forward_first(pieces, forward, backward):
    losses = [weighted(forward(piece), factor) for piece, factor in pieces]
    total = sum(one.detach() for one in losses)
    while losses:
        backward(losses.pop())
    return total


@pytest.fixture
def other_order(monkeypatch):
    monkeypatch.setattr(Checkpointing, "order", lambda technique: all_forward_first)


def trained(recipe):
    model, batch = build().double(), (BATCH[0].double(), BATCH[1])
    trainer = snugfit.prepare(model, recipe, loss=loss, optimizer="sgd", lr=0.1)
    return torch.stack([trainer.step(batch) for _ in range(3)]), list(model.parameters())


def test_the_update_is_the_same(other_order):
    plain, other = trained(Recipe()), trained(Recipe(microbatch_size=4, checkpoint="all"))
    torch.testing.assert_close(other, plain, rtol=1e-9, atol=1e-12)


def peak(order):
    """In a worker, where the simulator's own step finds the technique's order."""
    if order is not None:
        Checkpointing.order = lambda technique: order
    try:
        given = {"loss": loss, "optimizer": "sgd"}
        trace = record_given(build, BATCH, given, Recipe(microbatch_size=4, checkpoint="all"), Personality()).trace
        return replay(trace).peak_allocated_bytes
    finally:
        if order is not None:
            del Checkpointing.order


def test_the_simulator_takes_it_too(pool):
    assert pool.call(peak, all_forward_first) > pool.call(peak, None)
