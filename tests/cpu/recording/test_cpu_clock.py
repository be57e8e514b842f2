"""The processor's clock: operators one after the other, and what the calibration takes for granted."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.measure import host_speeds
from snugfit.recording.cpu_clock import HostSpeeds, cpu_clock, cpu_run_seconds
from snugfit.recording.trace import OperatorRun, TraceBuilder

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


class Count(TorchDispatchMode):
    operators = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operators += not func.is_view
        return func(*args, **(kwargs or {}))


def test_the_operators_of_the_calibration_are_counted_right(monkeypatch):
    counted = []

    def once(run):
        run()
        with Count() as count:
            run()
        counted.append(count.operators)
        return 1.0

    monkeypatch.setattr(host_speeds, "_seconds", once)
    assert host_speeds._operator_seconds() == pytest.approx(1 / counted[0])


def test_speeds_of_this_machine_are_plausible_and_draw_no_random_number():
    state = torch.get_rng_state()
    speeds = host_speeds.host_speeds()
    assert torch.equal(torch.get_rng_state(), state)
    assert 1e-7 < speeds.operator_seconds < 1e-3
    assert all(1e8 < rate < 1e14 for _, rate in speeds.product_rates)
    assert all(1e-13 < seconds < 1e-7 for _, seconds in speeds.byte_seconds)
    assert speeds.operator_factors["aten.gelu.default"] > 0.3
    assert host_speeds.host_speeds() is speeds
