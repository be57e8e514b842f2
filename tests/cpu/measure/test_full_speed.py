"""Waiting until a machine that is slower at times is fast, and for how long."""

import itertools

import pytest
import torch

from snugfit.measure import full_speed
from snugfit.measure.full_speed import FullSpeed

FAST, SLOW = 50e-6, 95e-6


class _Machine:
    """A clock that only runs while the few operators do, as long as given."""

    def __init__(self, monkeypatch, durations):
        self.now, self.durations, self.ran = 0.0, iter(durations), 0
        monkeypatch.setattr(full_speed, "busy_clock", lambda: self.clock)
        monkeypatch.setattr(full_speed.time, "perf_counter", self.clock)
        monkeypatch.setattr(full_speed, "few_operators", self.few_operators)

    def clock(self):
        return self.now

    def few_operators(self):
        self.now += next(self.durations)
        self.ran += 1


def test_nothing_is_waited_at_full_speed(monkeypatch):
    machine = _Machine(monkeypatch, [FAST, 1.1 * FAST, 0.5 * FAST])
    speed = FullSpeed(FAST, patience=1.0)
    assert speed.wait() and speed.wait() and speed.wait()
    assert (machine.ran, speed.patience, speed.missed) == (3, 1.0, 0)


def test_it_waits_until_the_machine_is_fast_again(monkeypatch):
    machine = _Machine(monkeypatch, [*[SLOW] * 100, FAST, FAST])
    speed = FullSpeed(FAST, patience=1.0)
    assert speed.wait()
    assert machine.ran == 101 and speed.missed == 0
    assert speed.patience == pytest.approx(1.0 - 100 * SLOW - FAST)


def test_a_machine_that_stays_slow_is_waited_for_once_only(monkeypatch):
    machine = _Machine(monkeypatch, itertools.repeat(SLOW))
    speed = FullSpeed(FAST, patience=1.0)
    assert not speed.wait()
    assert machine.now == pytest.approx(1.0, abs=1e-3) and (speed.patience, speed.missed) == (0.0, 1)
    before = machine.ran
    assert not speed.wait()
    assert (machine.ran - before, speed.missed) == (1, 2)


def test_one_wait_does_not_use_up_all_patience(monkeypatch):
    machine = _Machine(monkeypatch, itertools.repeat(SLOW))
    speed = FullSpeed(FAST, patience=100.0)
    assert not speed.wait()
    assert machine.now == pytest.approx(3.0, abs=1e-3) and speed.patience == pytest.approx(97.0, abs=1e-3)


def test_behind_a_step_the_first_few_may_be_slow(monkeypatch):
    _Machine(monkeypatch, [4 * FAST, 2 * FAST, 1.5 * FAST, FAST])
    assert FullSpeed(FAST, patience=1.0).is_here()
    _Machine(monkeypatch, itertools.repeat(SLOW))
    speed = FullSpeed(FAST, patience=1.0)
    assert not speed.is_here()
    assert (speed.patience, speed.missed) == (1.0, 0)


def test_full_speed_is_what_the_fastest_tenth_is_within(monkeypatch):
    _Machine(monkeypatch, itertools.cycle([SLOW, SLOW, SLOW, SLOW, FAST]))
    assert full_speed.few_operators_seconds() == pytest.approx(FAST)
    _Machine(monkeypatch, [FAST / 2, *[FAST] * 999])
    assert full_speed.few_operators_seconds() == pytest.approx(FAST)


def test_the_few_operators_draw_no_random_number():
    state = torch.get_rng_state()
    full_speed.few_operators()
    assert torch.equal(torch.get_rng_state(), state)
