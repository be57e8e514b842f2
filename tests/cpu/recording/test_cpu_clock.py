"""The processor's clock: operators one after the other, and the speeds that it takes for granted."""

import pytest
import torch

from snugfit.operators import host_speeds
from snugfit.recording.cpu_clock import HostSpeeds, cpu_clock, cpu_run_seconds
from snugfit.recording.operator_run import OperatorRun
from snugfit.recording.trace_builder import TraceBuilder

SPEEDS = HostSpeeds(
    operator_seconds=1e-5,
    product_rates=((1e6, 1e10), (1e8, 3e10)),
    dtype_factors={"bfloat16": 0.5},
    memory_seconds=((1e3, 1e-6), (1e6, 3e-5)),
    threads=1,
)


def op(flops=0, read=0, written=0, dtype="float32", kernels=1, product=(), phase="forward", seconds=None):
    return OperatorRun(
        "aten.add.Tensor", "m", phase, flops, read, written, dtype, kernels, "device", product=product, seconds=seconds
    )


def test_an_operator_costs_its_bytes_or_its_arithmetic_or_what_it_took():
    def inside(run):
        return cpu_run_seconds(run, SPEEDS) - 1e-5

    assert inside(op(read=10)) == pytest.approx(1e-6)
    assert inside(op(read=500_000, written=500)) == pytest.approx(1e-6 + 2.9e-5 / 2)
    assert inside(op(read=10**7, written=10**7)) == pytest.approx(20 * 3e-5)
    assert inside(op(flops=10**8)) == pytest.approx(1e8 / 3e10)
    assert inside(op(flops=10**8, dtype="bfloat16")) == pytest.approx(1e8 / 1.5e10)
    assert inside(op(flops=10**8, product=(100, 10, 10, 10))) == pytest.approx(1e8 / 1e10)
    assert inside(op(flops=10**3, read=10**9)) == pytest.approx(1e3 * 3e-5)
    assert inside(op(flops=10**8, read=10**9, seconds=5e-5)) == pytest.approx(5e-5)


def test_a_view_costs_nothing_and_nothing_stands_around_an_operator_of_an_update():
    assert cpu_run_seconds(op(read=10**9, kernels=0), SPEEDS) == 0
    assert cpu_run_seconds(op(read=10, phase="optimizer"), SPEEDS) == pytest.approx(1e-6)


def test_a_step_is_the_sum():
    build = TraceBuilder()
    build.run(op(read=10**6))
    build.run(op(flops=10**8, phase="backward"))
    build.run(op(read=10**6, phase="optimizer")._replace(device="link"))
    timing = cpu_clock(build.build(), SPEEDS)
    product = 1e8 / 3e10
    assert timing.step_seconds == pytest.approx(4e-5 + 1e-5 + product + 3e-5)
    assert timing.phase_seconds == pytest.approx({"forward": 4e-5, "backward": 1e-5 + product, "optimizer": 3e-5})
    assert timing.host_seconds == pytest.approx(1.1e-5 + 1.1e-5 + 1e-6)
    assert timing.link_seconds == pytest.approx(3e-5)
    assert timing.flops == 10**8


def test_speeds_of_this_machine_are_plausible_and_draw_no_random_number():
    state = torch.get_rng_state()
    speeds = host_speeds.host_speeds()
    assert torch.equal(torch.get_rng_state(), state)
    assert 1e-7 < speeds.operator_seconds < 1e-2
    assert all(1e8 < rate < 1e14 for _, rate in speeds.product_rates)
    assert all(1e-7 < seconds < 1 for _, seconds in speeds.memory_seconds)
    assert host_speeds.host_speeds() is speeds
