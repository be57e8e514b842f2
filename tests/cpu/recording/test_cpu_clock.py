"""The processor's clock: operators one after the other, and what the calibration takes for granted."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from snugfit.fake_device.personality import Personality
from snugfit.measure import around_operators, host_speeds
from snugfit.recipe import Recipe
from snugfit.recording.clock import runs_of_step
from snugfit.recording.cpu_clock import HostSpeeds, cpu_clock, cpu_run_seconds
from snugfit.recording.trace import OperatorRun, TraceBuilder
from snugfit.simulator.session import simulate_training
from snugfit.training.prepare import prepare

LOSS = around_operators._loss

SPEEDS = HostSpeeds(
    operator_seconds=1e-5,
    product_rates=((1e6, 1e10), (1e8, 3e10)),
    dtype_factors={"bfloat16": 0.5},
    byte_seconds=((1e4, 1e-11), (1e6, 3e-11)),
    operator_factors={"aten.gelu.default": 4.0},
    threads=1,
)


def op(name="aten.add.Tensor", flops=0, read=0, written=0, dtype="float32", kernels=1, product=(), phase="forward"):
    return OperatorRun(name, "m", phase, flops, read, written, dtype, kernels, "device", product=product)


def test_an_operator_costs_its_bytes_or_its_arithmetic():
    assert cpu_run_seconds(op(read=10**6, written=10**6), SPEEDS) == pytest.approx(1e-5 + 2e6 * 3e-11)
    assert cpu_run_seconds(op(read=505_000), SPEEDS) == pytest.approx(1e-5 + 505_000 * 2e-11)
    assert cpu_run_seconds(op("aten.gelu.default", read=100), SPEEDS) == pytest.approx(1e-5 + 100 * 1e-11 * 4)
    assert cpu_run_seconds(op(flops=10**8), SPEEDS) == pytest.approx(1e-5 + 1e8 / 3e10)
    assert cpu_run_seconds(op(flops=10**8, dtype="bfloat16"), SPEEDS) == pytest.approx(1e-5 + 1e8 / 1.5e10)
    many = op(flops=10**8, product=(100, 10, 10, 10))
    assert cpu_run_seconds(many, SPEEDS) == pytest.approx(1e-5 + 1e8 / 1e10)
    assert cpu_run_seconds(op(read=10**9, kernels=0), SPEEDS) == 0


def test_a_step_is_the_sum():
    build = TraceBuilder()
    build.run(op(read=10**6))
    build.run(op(flops=10**8, phase="backward"))
    timing = cpu_clock(build.build(), SPEEDS)
    assert timing.step_seconds == pytest.approx(2e-5 + 3e-5 + 1e8 / 3e10)
    assert timing.phase_seconds == pytest.approx({"forward": 4e-5, "backward": 1e-5 + 1e8 / 3e10})
    assert timing.flops == 10**8


def test_an_operator_that_was_timed_counts_by_its_time_and_what_stands_around_it():
    timed = dataclasses.replace(
        SPEEDS, call_seconds=2e-6, backward_operator_seconds=4e-6, parameter_seconds=7e-6, step_seconds=1e-3,
    )  # fmt: skip
    run = op(read=10**9)._replace(seconds=5e-5)
    assert cpu_run_seconds(run, timed) == pytest.approx(1e-5 + 4.8e-5)
    assert cpu_run_seconds(run._replace(phase="backward"), timed) == pytest.approx(4e-6 + 4.8e-5)
    assert cpu_run_seconds(run._replace(seconds=1e-6), timed) == pytest.approx(1e-5)
    checkpointed = dataclasses.replace(timed, kept_again_seconds=2e-5)
    assert cpu_run_seconds(run._replace(kept_again=3), checkpointed) == pytest.approx(1e-5 + 4.8e-5 + 6e-5)
    busy = dataclasses.replace(timed, busy_factor=1.5)
    assert cpu_run_seconds(run, busy) == pytest.approx(1e-5 + 4.8e-5 * 1.5)
    assert cpu_run_seconds(run, SPEEDS) == pytest.approx(1e-5 + 1e9 * 3e-11)
    build = TraceBuilder()
    for _ in range(3):
        build.alloc(100, category="gradients", phase="backward")
    build.run(run)
    timing = cpu_clock(build.build(), timed)
    assert timing.step_seconds == pytest.approx(5.8e-5 + 3 * 7e-6 + 1e-3)
    assert timing.phase_seconds["optimizer"] == pytest.approx(3 * 7e-6 + 1e-3)


def test_the_calibration_collects_the_operators_that_compute():
    with around_operators._Calls() as calls:
        F.relu(torch.ones(2, 3).transpose(0, 1) @ torch.ones(2, 3))
    names = [call.func._opname for _, call in calls.found]
    assert names[-2:] == ["mm", "relu"] and "transpose" not in names
    assert torch.equal(calls.found[-1][1](), torch.full((3, 3), 2.0))


@pytest.mark.parametrize("checkpoint", ["none", "all"])
def test_a_simulation_counts_what_blocks_keep_again_as_the_calibration_does(checkpoint):
    model, batch, recipe = around_operators._model(16), torch.randn(1, 4, 16), Recipe(checkpoint=checkpoint)
    found = simulate_training(model, recipe, batch, personality=Personality(kind="cpu"), arguments={"loss": LOSS})
    counted = sum(found.trace.runs[index].kept_again for index in runs_of_step(found.trace))
    trainer = prepare(around_operators._model(16), recipe, loss=LOSS, device="cpu")
    trainer.step(batch)
    with around_operators._Calls() as calls:
        trainer.step(batch)
    trainer.finish()
    assert abs(counted - calls.kept_again) <= 2
    assert (counted > 80) == (checkpoint == "all")


def test_speeds_of_this_machine_are_plausible_and_draw_no_random_number():
    state = torch.get_rng_state()
    speeds = host_speeds.host_speeds()
    assert torch.equal(torch.get_rng_state(), state)
    assert 1e-7 < speeds.operator_seconds < 1e-3
    assert all(1e8 < rate < 1e14 for _, rate in speeds.product_rates)
    assert all(1e-13 < seconds < 1e-7 for _, seconds in speeds.byte_seconds)
    assert speeds.operator_factors["aten.gelu.default"] > 0.3
    assert host_speeds.host_speeds() is speeds
