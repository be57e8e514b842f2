"""The processor's clock: operators one after the other, and what the calibration takes for granted."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from snugfit.fake_device.personality import Personality
from snugfit.measure import around_operators, host_speeds, small_models
from snugfit.recipe import Recipe
from snugfit.recording.clock import runs_of_step
from snugfit.recording.cpu_clock import HostSpeeds, cpu_clock, cpu_run_seconds
from snugfit.recording.trace import CODE, ENGINE, GRAPH, OperatorRun, TraceBuilder
from snugfit.simulator.session import simulate_training
from snugfit.training.prepare import prepare

LOSS = small_models.loss

SPEEDS = HostSpeeds(
    operator_seconds=1e-5,
    product_rates=((1e6, 1e10), (1e8, 3e10)),
    dtype_factors={"bfloat16": 0.5},
    byte_seconds=((1e4, 1e-11), (1e6, 3e-11)),
    operator_factors={"aten.gelu.default": 4.0},
    threads=1,
)


def op(name="aten.add.Tensor", flops=0, read=0, written=0, dtype="float32", kernels=1, product=(), phase="forward"):
    caller = ENGINE if phase == "backward" else GRAPH
    return OperatorRun(name, "m", phase, flops, read, written, dtype, kernels, "device", product=product, caller=caller)


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
        SPEEDS, call_seconds=2e-6, backward_operator_seconds=-1e-6, parameter_seconds=7e-6, step_seconds=1e-3,
    )  # fmt: skip
    run = op(read=10**9)._replace(seconds=5e-5)
    assert cpu_run_seconds(run, timed) == pytest.approx(1e-5 + 5e-5)
    assert cpu_run_seconds(run._replace(caller=ENGINE), timed) == pytest.approx(-1e-6 + 5e-5)
    checkpointed = dataclasses.replace(timed, kept_again_seconds=2e-5)
    assert cpu_run_seconds(run._replace(kept_again=3), checkpointed) == pytest.approx(1e-5 + 5e-5 + 6e-5)
    busy = dataclasses.replace(timed, busy_factor=1.5)
    assert cpu_run_seconds(run, busy) == pytest.approx(1e-5 + 5e-5 * 1.5)
    assert cpu_run_seconds(run._replace(seconds=None), timed) == pytest.approx(1e-5 + 2e-6 + 1e9 * 3e-11)
    assert cpu_run_seconds(run, SPEEDS) == pytest.approx(1e-5 + 1e9 * 3e-11)
    build = TraceBuilder()
    for _ in range(3):
        build.alloc(100, category="gradients", phase="backward")
    build.run(run)
    timing = cpu_clock(build.build(), timed)
    assert timing.step_seconds == pytest.approx(6e-5 + 3 * 7e-6 + 1e-3)
    assert timing.host_seconds == pytest.approx(1e-5 + 2e-6 + 3 * 7e-6 + 1e-3)
    assert timing.phase_seconds["optimizer"] == pytest.approx(3 * 7e-6 + 1e-3)


def test_who_calls_an_operator_and_what_comes_before_it_decide_on_what_stands_around_it():
    speeds = dataclasses.replace(
        SPEEDS, backward_operator_seconds=4e-6, code_operator_seconds=1e-6, view_seconds=3e-7, backward_view_seconds=2e-7,
        module_seconds=5e-6,
    )  # fmt: skip
    run = op()._replace(views=2, modules=1)
    for caller, seconds in ((GRAPH, 1e-5 + 6e-7 + 5e-6), (ENGINE, 4e-6 + 4e-7 + 5e-6), (CODE, 1e-6 + 6e-7 + 5e-6)):
        assert speeds.around(run._replace(caller=caller)) == pytest.approx(seconds)
        assert SPEEDS.around(run._replace(caller=caller)) == pytest.approx(1e-5)


def test_each_microbatch_is_a_pass():
    speeds = dataclasses.replace(SPEEDS, pass_seconds=1e-3, gradient_seconds=1e-4)
    build = TraceBuilder()
    for _ in range(2):
        build.alloc(100, category="gradients", phase="backward")
    for _ in range(3):
        build.run(op())
        build.run(op())
        build.run(op(phase="backward"))
    timing = cpu_clock(build.build(), speeds)
    assert timing.phase_seconds["backward"] == pytest.approx(3 * (1e-5 + 1e-3 + 2 * 1e-4))


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2 + 1

    @staticmethod
    def backward(ctx, slope):
        return slope.sin() * 2


class _Calling(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return _Scaled.apply(self.layer(x).transpose(0, 1).exp())


def test_a_simulation_knows_who_calls():
    batch = torch.randn(4, 4)
    found = simulate_training(
        _Calling(),
        Recipe(),
        batch,
        personality=Personality(kind="cpu"),
        arguments={"loss": lambda out, batch: out.sum()},
    )
    runs = [found.trace.runs[index] for index in runs_of_step(found.trace)]
    callers = [(run.phase, run.operator.split(".")[1], run.caller) for run in runs if run.phase != "optimizer"]
    assert callers[:4] == [
        ("forward", "mm", GRAPH), ("forward", "exp", GRAPH), ("forward", "mul", CODE), ("forward", "add", CODE)
    ]  # fmt: skip
    backward = [(name, caller) for phase, name, caller in callers if phase == "backward"]
    assert ("sin", CODE) in backward and ("mm", ENGINE) in backward
    assert [run.caller for run in runs if "_fused_adamw_" in run.operator] == [CODE]
    assert runs[0].modules == 2 and runs[1].modules == 0
    assert runs[1].views == 1


def test_the_calibration_collects_the_operators_that_compute():
    with around_operators._Calls() as calls:
        F.relu(torch.ones(2, 3).transpose(0, 1) @ torch.ones(2, 3))
    names = [call.func._opname for _, call in calls.found]
    assert names[-2:] == ["mm", "relu"] and "transpose" not in names
    assert torch.equal(calls.found[-1][1](), torch.full((3, 3), 2.0))


@pytest.mark.parametrize("checkpoint", ["none", "all"])
def test_a_simulation_counts_what_blocks_keep_again_as_the_calibration_does(checkpoint):
    model, batch, recipe = small_models.model(16), torch.randn(1, 4, 16), Recipe(checkpoint=checkpoint)
    found = simulate_training(model, recipe, batch, personality=Personality(kind="cpu"), arguments={"loss": LOSS})
    counted = sum(found.trace.runs[index].kept_again for index in runs_of_step(found.trace))
    trainer = prepare(small_models.model(16), recipe, loss=LOSS, device="cpu")
    trainer.step(batch)
    with around_operators._Calls() as calls:
        trainer.step(batch)
    trainer.finish()
    assert abs(counted - calls.counts[around_operators._AGAIN]) <= 2
    assert (counted > 80) == (checkpoint == "all")
    runs = [found.trace.runs[index] for index in runs_of_step(found.trace)]
    for caller in (GRAPH, ENGINE, CODE):
        assert abs(sum(run.caller == caller for run in runs) - calls.counts[caller]) <= 4, caller
    views = sum(calls.counts[caller, "view"] for caller in (GRAPH, ENGINE, CODE))
    assert sum(run.views for run in runs) == pytest.approx(views, rel=0.1)
    assert sum(run.modules for run in runs) == calls.counts[around_operators._MODULES]


def test_speeds_of_this_machine_are_plausible_and_draw_no_random_number():
    state = torch.get_rng_state()
    speeds = host_speeds.host_speeds()
    assert torch.equal(torch.get_rng_state(), state)
    assert abs(speeds.operator_seconds) < 1e-3 and 1e-7 < speeds.module_seconds + speeds.pass_seconds < 1e-1
    assert all(1e8 < rate < 1e14 for _, rate in speeds.product_rates)
    assert all(1e-13 < seconds < 1e-7 for _, seconds in speeds.byte_seconds)
    assert speeds.operator_factors["aten.gelu.default"] > 0.3
    assert host_speeds.host_speeds() is speeds
