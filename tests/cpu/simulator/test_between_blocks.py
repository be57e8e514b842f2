"""What a model does with some of its equal blocks and not with others is never left out of an estimate."""

import pytest
import torch
from torch import nn

from snugfit import Recipe
from snugfit.recording.replay import replay
from snugfit.simulator.given_training import simulate_training

DEPTH, WIDTH = 24, 32
BATCH = torch.empty(64, WIDTH, device="meta")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, scale=None, number=0):
        x = x + self.inner(x).relu()
        return x if scale is None else x * scale


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            x = block(x, None, number)
        return self.head(x)


class KeepsOne(Plain):
    def forward(self, x):
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number == 15:
                kept = x.exp()
        return self.head(x) + kept


class LossAtOne(Plain):
    def forward(self, x):
        aside = 0.0
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number == 15:
                aside = self.head(x).square()
        return self.head(x) + aside


class OtherArgument(Plain):
    def forward(self, x):
        for number, block in enumerate(self.blocks):
            x = block(x, torch.ones_like(x) if number == 15 else None)
        return self.head(x)


class SkipsOne(Plain):
    def forward(self, x):
        for number, block in enumerate(self.blocks):
            x = x if number == 15 else block(x)
        return self.head(x)


def loss(output, batch):
    return output.square().mean()


def recorded(pool, build, **how):
    return simulate_training(build, Recipe(), BATCH, pool=pool, arguments={"loss": loss, "evaluate": False}, **how)


@pytest.mark.parametrize(
    "build, left_out", [(Plain, True), (KeepsOne, False), (LossAtOne, False), (OtherArgument, False), (SkipsOne, False)]
)
def test_a_block_that_is_treated_differently_is_recorded(pool, build, left_out):
    few, whole = recorded(pool, build), recorded(pool, build, whole=True)
    assert (few.blocks_left_out > 0) == left_out and not whole.blocks_left_out
    assert replay(few.trace).peak_allocated_bytes == replay(whole.trace).peak_allocated_bytes
    assert len(few.trace.runs) == len(whole.trace.runs)
