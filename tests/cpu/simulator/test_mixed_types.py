"""Elementwise kernels of the CPU convert operands of another type first; the table says what that takes."""

from __future__ import annotations

import operator

import pytest
import torch

from snugfit.measure.operator_events import OperatorEvents
from snugfit.simulator.cpu_kernels import CPU_ROWS

COUNT = 10_000
SINGLE, HALF = torch.ones(COUNT), torch.ones(COUNT, dtype=torch.bfloat16)
WHOLE, DOUBLE = torch.ones(COUNT, dtype=torch.long), torch.ones(COUNT, dtype=torch.float64)
NUMBER = torch.tensor(2.0)


@pytest.mark.parametrize("left", [SINGLE, HALF, WHOLE, DOUBLE], ids=["single", "half", "whole", "double"])
@pytest.mark.parametrize("right", [SINGLE, HALF, WHOLE, NUMBER], ids=["single", "half", "whole", "number"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "iadd", "imul"])
def test_bytes_inside_are_those_of_the_allocator(left, right, name):
    if name.startswith("i") and not torch.can_cast(torch.result_type(left, right), left.dtype):
        pytest.skip("torch refuses this one")
    if name == "truediv" and left is right is WHOLE:
        pytest.skip("divisions of whole numbers are done in float32; no training step has one")
    left = left.clone()
    events = OperatorEvents(torch.device("cpu"))
    with events:
        getattr(operator, name)(left, right)
    found = [row for row in events.taken() if "clone" not in row.operator]
    inside = found[0].inside_bytes if found else 0
    short = {"truediv": "div"}.get(name, name.removeprefix("i"))
    row = CPU_ROWS[f"aten.{short}{'_' if name.startswith('i') else ''}.Tensor"]
    predicted = sum(space.nbytes for space in row((left, right), {}))
    assert predicted == pytest.approx(inside, abs=64), (name, left.dtype, right.dtype)
