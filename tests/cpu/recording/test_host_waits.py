"""Waits of the host for the card: by hand, and of a script's step as it is recorded."""

import pytest
import torch
from torch import nn

import snugfit
from snugfit.devices import device_named
from snugfit.recording.clock import clock
from snugfit.recording.host_waits import host_waits
from snugfit.recording.operator_run import OperatorRun
from snugfit.recording.trace_builder import TraceBuilder

A100 = device_named("a100-40gb")
WORK = OperatorRun("aten.mm.default", "", "forward", 10**12, 10**8, 10**8, "bfloat16", 1, "device")
READ = OperatorRun(
    "aten._local_scalar_dense.default", "", "forward", 0, 4, 0, "float32", 1, "link", blocking=True, line="train.py:7"
)


def trace_of(*runs):
    builder = TraceBuilder()
    for run in runs:
        builder.run(run)
    return builder.build()


def test_what_waits_cost_is_the_time_of_the_step_without_them():
    small = WORK._replace(flops=10**6, read_bytes=1000, written_bytes=1000)
    step = trace_of(WORK, READ, *[small] * 50, WORK)
    found = host_waits(step, A100)
    free = trace_of(WORK, READ._replace(blocking=False), *[small] * 50, WORK)
    assert found.times == 1 and [(one.line, one.what) for one in found.lines] == [("train.py:7", "reads a number")]
    assert found.lost_seconds > 0
    assert found.lost_seconds == pytest.approx(clock(step, A100).step_seconds - clock(free, A100).step_seconds)


def test_a_wait_at_the_end_of_a_step_costs_nothing():
    assert host_waits(trace_of(WORK, WORK, READ), A100).lost_seconds == 0


def test_only_what_a_person_has_written_counts():
    assert host_waits(trace_of(WORK, READ._replace(line=""), READ._replace(blocking=False)), A100) is None


def test_an_unknown_speed_has_no_cost():
    assert host_waits(trace_of(WORK, READ), None).lost_seconds is None


def test_a_scripts_waits_are_found():
    """Each read of a number, each size that values decide, each plain copy to the host; not what does not wait."""

    def step(model, optimizer, batch):
        loss = model(batch).square().mean()
        for weight in model.parameters():
            float(weight.sum())
        kept = batch[batch[:, 0] > 0]
        batch.sum().cpu()
        (loss + 0 * kept.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()

    found = snugfit.estimate(
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.empty(64, 8, device="meta"), step=step,
        optimizer="adamw", device="a100-40gb", assume={"nonzero": 0.5},
    )  # fmt: skip
    whats = {
        one.what: (one.times, one.line.rpartition(":")[0].endswith("test_host_waits.py"))
        for one in found.host_waits.lines
    }
    assert whats == {
        "reads a number": (4, True), "a size that values decide": (1, True), "copies": (1, True)
    }  # fmt: skip
    assert found.host_waits.times == 6 == found.to_mapping()["host_waits"]["times"]
    assert "6 times a step for the card" in str(found)


def test_snugfits_own_step_does_not_wait_in_a_persons_name():
    batch = (torch.empty(4, 8, device="meta"), torch.empty(4, 8, device="meta"))

    def loss(output, batch):
        return (output - batch[1]).square().mean()

    found = snugfit.estimate(lambda: nn.Linear(8, 8), batch, loss=loss, device="a100-40gb", clip_norm=1.0)
    assert found.host_waits is None
