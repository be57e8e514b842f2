"""Which smaller sizes are run, and which numbers lie on a line."""

import pytest
import torch

from snugfit.operators.operator_truth import Truth
from snugfit.operators.size_line import on_line, sizes_to_run


@pytest.mark.parametrize("number", [8, 12, 16, 33, 64, 100, 197, 768, 1576, 4096, 50257])
@pytest.mark.parametrize("share", [0.5, 0.1, 0.001])
def test_sizes_are_apart_and_leave_the_same_remainder(number, share, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    points = sizes_to_run(number, share)
    assert points is not None and len(set(points)) == 4 and list(points) == sorted(points, reverse=True)
    assert torch.get_num_threads() < points[-1] and points[0] <= number * 3 // 4
    if number >= 4096:
        assert {point % 16 for point in points} == {number % 16}


def test_fewer_samples_than_threads_are_left_as_they_are(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    assert sizes_to_run(24, 0.1) is None
    assert min(sizes_to_run(256, 0.1)) > 16


def test_on_line_wants_every_point():
    def truth(value):
        return Truth((value,), (), ())

    assert on_line((40, 30, 20, 10), [truth(v * 10**6) for v in (40, 30, 20, 10)], 100) == truth(10**8)
    assert on_line((40, 30, 20, 10), [truth(v * 10**6) for v in (40, 31, 20, 10)], 100) is None
    assert on_line((40, 30, 20, 10), [truth(v * 10**6) for v in (40, 30, 21, 10)], 100) is None
