"""Microbatches that are left out change no number: the short recording against the one of all microbatches."""

import pickle

import pytest
import small_models
import torch

from snugfit.devices import device_named
from snugfit.fake_device.personality import Personality
from snugfit.recipe import Recipe
from snugfit.recording.clock import clock
from snugfit.recording.replay import replay
from snugfit.recording.replays import Replays
from snugfit.recording.trace import Repeat
from snugfit.simulator import pieces
from snugfit.simulator.given_training import record_given, simulate_training

CARD = device_named("rtx-3090")


def record_all(model, recipe, batch, arguments):
    """Records without leaving anything out; runs in a worker."""
    before = pieces.FIRST_STEP, pieces.LATER_STEPS
    pieces.FIRST_STEP = pieces.LATER_STEPS = 10**6
    try:
        return record_given(model, batch, arguments, recipe, Personality())
    finally:
        pieces.FIRST_STEP, pieces.LATER_STEPS = before


@pytest.mark.parametrize(
    "model, size, change, gpus",
    [
        ("mlp", 2, {}, 1),
        ("cnn", 3, {}, 1),
        ("vit", 2, {"checkpoint": "all"}, 1),
        ("vit", 2, {"offload_activations": "all"}, 1),
        ("vit", 1, {"precision": "16-mixed"}, 1),
        ("vit", 4, {"precision": "bf16-true", "accumulate_dtype": "fp32"}, 1),
        ("tied", 5, {"offload_optimizer": True}, 1),
        ("mlp", 1, {}, 2),
        ("cnn", 3, {"reduce_gradients": "microbatch"}, 2),
        ("vit", 1, {"shard": "full", "checkpoint": "all"}, 2),
        ("vit", 2, {"shard": "gradients"}, 2),
        ("vit", 1, {"shard": "full", "reduce_gradients": "microbatch", "offload_optimizer": True}, 4),
    ],
)
def test_nothing_is_missed(pool, model, size, change, gpus):
    recipe = Recipe(microbatch_size=size, **change)
    (batch,) = small_models.make_batches(model, 32, 1, torch.float32)
    given = {"arguments": {"loss": small_models.cross_entropy, "gpus": gpus}}
    module = small_models.make_model(model, torch.float32)
    short = simulate_training(module, recipe, batch, pool=pool, **given).trace
    whole = pool.call(record_all, module, recipe, batch, **given).trace
    assert short.repeats and not whole.repeats and len(short) < len(whole)
    one, other = replay(short), replay(whole)
    assert one.peak_allocated_bytes == other.peak_allocated_bytes
    assert one.peak_reserved_bytes == other.peak_reserved_bytes
    assert one.host_peak_bytes == other.host_peak_bytes
    assert Replays(short).smallest_bytes == Replays(whole).smallest_bytes
    a, b = clock(short, CARD), clock(whole, CARD)
    assert a is not None and b is not None
    assert a.step_seconds == pytest.approx(b.step_seconds, rel=1e-6)
    assert a.flops == b.flops and a.link_seconds == pytest.approx(b.link_seconds)
    assert pickle.loads(pickle.dumps(short)) == short


def test_odd_pieces_are_kept():
    fewer = pieces.FewerPieces(None)
    batch = torch.zeros(23, 2)
    assert [len(piece) for piece in fewer(batch, 2)] == [2, 2, 1]
    assert [len(piece) for piece in fewer(batch, 2)] == [2, 2, 2, 1]
    assert fewer.left_out == [[(1, 9)], [(2, 8)]]
    last = pieces.FewerPieces(None, last=True)
    assert [len(piece) for piece in last(batch[:22], 2)] == [2, 2, 2] and last.left_out == [[(1, 8)]]
    several = pieces.FewerPieces(lambda batch, size: [torch.zeros(n) for n in (4, 4, 4, 2, 2, 2, 4)])
    assert [len(piece) for piece in several(batch, 2)] == [4, 4, 2, 2, 4]
    assert several.left_out == [[(1, 1), (3, 1)]]


def test_a_batch_of_few_pieces_is_simulated_whole(pool):
    (batch,) = small_models.make_batches("mlp", 32, 1, torch.float32)
    module = small_models.make_model("mlp", torch.float32)
    given = {"arguments": {"loss": small_models.cross_entropy}}
    trace = simulate_training(module, Recipe(microbatch_size=16), batch, pool=pool, **given).trace
    assert trace.repeats == ()


class Alternating(torch.nn.Module):
    """Does something else every other time it is called."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(12, 5)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        x = torch.cat([x, x])[: len(x)] if self.calls % 2 else x
        return self.layer(x)


def test_what_is_not_alike_is_simulated_whole(pool):
    (batch,) = small_models.make_batches("mlp", 32, 1, torch.float32)
    given = {"arguments": {"loss": small_models.cross_entropy}}
    trace = simulate_training(Alternating(), Recipe(microbatch_size=2), batch, pool=pool, **given).trace
    assert trace.repeats == ()
    marks = [mark for mark in trace.marks() if mark.entered and mark.phase == "backward"]
    assert len(marks) == 2 * 16


def test_repeats_are_gone_through_as_often_as_they_say():
    from snugfit.recording.clock import runs_of_step
    from snugfit.recording.operator_run import OperatorRun
    from snugfit.recording.trace_builder import TraceBuilder

    build = TraceBuilder()
    for _ in range(4):
        build.run(OperatorRun("aten.op", "", "forward", 0, 0, 0, "float32", 1, "device"))
    import dataclasses

    trace = dataclasses.replace(build.build(), repeats=(Repeat(1, 3, 2),))
    assert list(runs_of_step(trace)) == [0, 1, 2, 1, 2, 1, 2, 3]
