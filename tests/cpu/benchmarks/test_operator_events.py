"""What operators take, read off the allocator and off a recording: the same rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from benchmarks.gpu.operator_events import OperatorEvents, own_blocks, predicted_taken
from torch import nn

import snugfit
from snugfit.recording.operator_run import OperatorRun
from snugfit.recording.trace_builder import TraceBuilder


@pytest.mark.parametrize(
    ("sizes", "kept", "inside"),
    [
        ([], (), 0),
        ([100], (100,), 0),
        ([100, -100], (), 100),
        ([-70, 100], (100,), 0),  # a release of what was there before
        ([40, 100, -40], (100,), 40),
        ([100, 60, -60, 30, -30, 8], (100, 8), 52),
        ([5, 5, -5], (5,), 5),
    ],
)
def test_own_blocks(sizes, kept, inside):
    assert own_blocks(sizes) == (kept, inside)


def test_a_recording_gives_rows_by_operator():
    builder = TraceBuilder()

    def run(operator):
        builder.run(OperatorRun(operator, "layer", "forward", 1, 0, 0, "float32", 1, "device"))

    builder.mark("forward", True, 1)
    builder.workspace(64, operator="mm", module="layer")
    builder.alloc(100, operator="mm", module="layer")
    run("mm")
    first = builder.alloc(30, operator="empty", module="layer")  # makes no kernel, so it has no run
    builder.free(first)
    builder.alloc(100, operator="mm", module="layer")
    run("mm")
    builder.alloc(9, place="host", operator="mm")
    builder.mark("forward", False, 1)
    found = [
        (row.step, row.phase, row.operator, row.kept, row.inside_bytes) for row in predicted_taken(builder.build())
    ]
    assert found == [
        (1, "forward", "mm", (100,), 0),
        (1, "forward", "empty", (30,), 0),
        (1, "forward", "mm", (100,), 0),
    ]


def loss(output, batch):
    return F.cross_entropy(output, batch[1])


def build():
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 5))


def test_a_real_step_takes_what_is_predicted():
    from snugfit.fake_device.personality import Personality
    from snugfit.simulator.given_training import simulate_training

    batch = (torch.randn(16, 32), torch.randint(0, 5, (16,)))
    recipe = snugfit.Recipe(optimizer_impl="for-loop")
    events = OperatorEvents(torch.device("cpu"))
    with events:
        trainer = snugfit.prepare(build(), recipe, loss=loss, device="cpu")
        events.modules.watch(trainer.model)
        for number in range(2):
            events.step = number
            trainer.step(batch)
    recording = simulate_training(
        build, recipe, batch, personality=Personality(kind="cpu", threads=1), evaluate=False, arguments={"loss": loss}
    )

    def large(rows):
        """Blocks of tensors, not the few bytes of a number that Python code made."""
        return sorted(
            (row.step, row.phase, row.operator, size)
            for row in rows
            for size in row.kept
            if size > 64 and row.phase in ("forward", "backward", "optimizer")
        )

    found = large(events.taken())
    assert found == large(predicted_taken(recording.trace)) and len(found) > 30
    assert (1, "forward", "aten.addmm.default", 16 * 64 * 4) in found
    modules = {row.module for row in events.taken() if row.phase == "forward"}
    assert {"0", "2", "3"} <= modules
