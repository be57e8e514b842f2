"""Blocks that the model never calls are told, once, in runs and estimates; others are not."""

import functools
import itertools

import pytest
import torch
import uncalled_blocks
from torch import nn
from uncalled_blocks import Stack

import snugfit
from snugfit import Recipe, SnugfitWarning
from snugfit.errors import UncalledBlocksWarning

NEVER = [uncalled_blocks.parts, uncalled_blocks.weights]
INSIDE = ("blocks.0.parts.0", "blocks.1.parts.0", "blocks.2.parts.0")


def loss(output, batch):
    return output.square().mean()


def inputs(samples=4, tokens=64):
    return torch.randn(samples, tokens, 16)


def trainer_of(model, **fields):
    return snugfit.prepare(model, Recipe(**fields), loss=loss, optimizer="sgd", lr=0.1, device="cpu")


def train(model, batch=None, steps=3, **fields):
    trainer = trainer_of(model, **fields)
    for _ in range(steps):
        trainer.step(inputs() if batch is None else batch)


@pytest.mark.parametrize("way", NEVER)
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"checkpoint": "all"}, "blocks.0, blocks.1 and 1 more"),
        ({"checkpoint": "selective"}, "blocks.0, blocks.1 and 1 more"),
        ({"checkpoint": "blocks.1", "step_in_backward": True}, "blocks.1"),
        (
            {"checkpoint": "all", "offload_activations": "checkpoints", "microbatch_size": 2},
            "blocks.0, blocks.1 and 1 more",
        ),
        ({"checkpoint": "all", "compile": "eager"}, "blocks.0, blocks.1 and 1 more"),
        ({"offload_activations": "blocks:2"}, "blocks.0, blocks.1"),
    ],
)
def test_blocks_that_are_never_called_are_told_once(way, fields, named):
    with pytest.warns(UncalledBlocksWarning) as caught:
        trainer = trainer_of(Stack(way), **fields)
        trainer.evaluate_batch(inputs())
        assert not caught.list
        trainer.step(inputs())
        assert len(caught.list) == 1
        trainer.step(inputs())
    (message,) = (str(one.message) for one in caught.list)
    assert f"({named})" in message and f"{next(iter(fields))} has no effect" in message
    assert f"{INSIDE[1]}" in message


def test_what_is_advised_helps():
    train(Stack(uncalled_blocks.parts), checkpoint=INSIDE)
    train(Stack(uncalled_blocks.parts), offload_activations=INSIDE)


class SomeBlocks(Stack):
    """Leaves blocks out, as chance does in layer drop."""

    def __init__(self, left):
        super().__init__(uncalled_blocks.called)
        self.left = itertools.cycle(left)

    def forward(self, x):
        for number in next(self.left):
            x = self.blocks[number](x)
        return self.head(x.mean(1))


@pytest.mark.parametrize("left", [[(0, 2)], [(), (0,), (1,)], [(1, 2), (0,)]])
def test_blocks_that_are_left_out_by_chance_are_not_told(left):
    for fields in ({"checkpoint": "blocks:1"}, {"checkpoint": "blocks.1"}, {"offload_activations": "blocks:1"}):
        train(SomeBlocks(left), **fields)


def compiled_blocks():
    model = Stack(uncalled_blocks.called)
    for number, block in enumerate(model.blocks):
        model.blocks[number] = torch.compile(block, backend="eager")
    return model


def blocks_compiled_in_place():
    model = Stack(uncalled_blocks.called)
    for block in model.blocks:
        block.compile(backend="eager")
    return model


def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)


@pytest.mark.parametrize(
    ("build", "fields"),
    [
        (functools.partial(Stack, uncalled_blocks.called), {}),
        (functools.partial(Stack, uncalled_blocks.forward), {}),
        (functools.partial(Stack, uncalled_blocks.called), {"compile": "eager"}),
        (compiled_blocks, {}),
        (blocks_compiled_in_place, {}),
        (encoder, {}),
    ],
)
def test_blocks_that_are_called_in_any_way_are_not_told(build, fields):
    train(build(), checkpoint="all", **fields)
    train(build(), checkpoint="blocks:1", **fields)


def test_loops_of_ones_own():
    loop = Stack(uncalled_blocks.parts)
    snugfit.apply(loop, Recipe(checkpoint="all"), device="cpu")
    loop(inputs()).mean().backward()
    with pytest.warns(UncalledBlocksWarning, match="called none of the blocks"):
        loop(inputs())
    within = Stack(uncalled_blocks.parts)
    with pytest.warns(UncalledBlocksWarning), snugfit.apply(within, Recipe(checkpoint="all"), device="cpu"):
        within(inputs()).mean().backward()


def test_a_network_whose_turn_comes_later_is_not_told():
    nets = nn.ModuleDict({"plain": nn.Linear(16, 16), "blocks": Stack(uncalled_blocks.called)})
    snugfit.apply(nets, Recipe(checkpoint="all"), device="cpu")
    for _ in range(2):
        nets["plain"](inputs()).mean().backward()
    nets["blocks"](inputs()).mean().backward()


@pytest.mark.parametrize("settings", [{}, {"gpus": 2, "batch_size": 64}])
def test_an_estimate_tells(pool, settings):
    def peak(way, **fields):
        given = {"loss": loss, "optimizer": "sgd", "device": "rtx-4090", "pool": pool, **settings}
        model, batch = functools.partial(Stack, way, 12), ((64, 128, 16), torch.float32)
        return snugfit.estimate(model, batch, recipe=Recipe(**fields), **given).peak_allocated_bytes

    for way in NEVER:
        with pytest.warns(SnugfitWarning, match=r"blocks\.0, blocks\.1 and 10 more"):
            assert peak(way, checkpoint="all") == peak(way)
    assert peak(uncalled_blocks.called, checkpoint="all") < 0.5 * peak(uncalled_blocks.called)
