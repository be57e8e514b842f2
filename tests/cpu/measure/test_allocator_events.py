"""Peaks from tables of events, and the real allocator's events."""

from __future__ import annotations

import subprocess
import sys

import patience
import pytest
import torch

from snugfit.measure.allocator_events import AllocatorEvents, run_through


@pytest.mark.parametrize(
    ("sizes", "before", "after", "peak"),
    [
        ([], 0, 0, 0),
        ([], 7, 7, 7),
        ([100, -100, 60], 0, 60, 100),
        ([100, 50, -100, 70], 0, 120, 150),
        ([100, 50, -100, 101], 0, 151, 151),
        ([-30, 20], 40, 30, 40),  # memory from before is released
        ([2**50, -(2**50)], 1, 1, 2**50 + 1),
    ],
)
def test_bytes_alive_and_the_most_of_them(sizes, before, after, peak):
    assert run_through(sizes, before) == (after, peak)


def test_real_events_are_exact_to_the_byte():
    events = AllocatorEvents()
    events.start()
    first = torch.empty(1000)
    second = torch.empty(3, 7, dtype=torch.float64)
    del first
    third = torch.empty(500)
    events.stop()
    assert events.peak_bytes == 4000 + 168
    assert events.balance_bytes == 168 + 2000
    del second, third


def test_balance_goes_on_over_a_cut_and_a_gap():
    events = AllocatorEvents()
    events.start()
    kept = torch.empty(1000)
    events.cut()
    passing = torch.empty(2000)
    del passing
    events.stop()
    unseen = torch.empty(10_000)
    events.start()
    again = torch.empty(1500)
    events.stop()
    assert events.peak_bytes == 4000 + 8000
    assert events.balance_bytes == 4000 + 6000
    del kept, unseen, again


def test_temporaries_inside_operators_are_seen():
    data = torch.randn(64, 64)
    events = AllocatorEvents()
    events.start()
    torch.linalg.inv(data)
    events.stop()
    assert events.peak_bytes > data.nbytes  # the result and the factorisation's own workspace
    assert events.balance_bytes == 0


def test_interpreter_may_end_in_an_open_window():
    program = "import torch; from snugfit.measure.allocator_events import AllocatorEvents as A; A().start(); 1 / 0"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=patience.SECONDS)
    assert run.returncode == 1
    assert run.stderr.rstrip().endswith("ZeroDivisionError: division by zero")
