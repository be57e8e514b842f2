"""How operators are timed: behind others, until they are steady, and by what most runs take."""

import itertools

import pytest

from snugfit.measure import operator_seconds
from snugfit.measure.operator_seconds import seconds_in_a_step


class _Machine:
    """A clock that only runs while an operator or the others do; asking for the time takes some, too."""

    ASKING = 1e-6

    def __init__(self, monkeypatch, durations):
        self.now, self.durations, self.ran = 0.0, iter(durations), []
        monkeypatch.setattr(operator_seconds, "busy_clock", lambda: self.clock)
        monkeypatch.setattr(operator_seconds, "few_operators", self.others)

    def clock(self):
        self.now += self.ASKING
        return self.now

    def others(self):
        self.now += 5.0
        self.ran.append("others")

    def run(self):
        self.now += next(self.durations)
        self.ran.append("run")


def test_first_runs_and_single_slow_ones_do_not_count(monkeypatch):
    durations = [9e-3, 4e-3, 1e-3, *[1e-3, 1e-3, 7e-3, 1e-3] * 2, *[1.0] * 100]
    machine = _Machine(monkeypatch, durations)
    assert seconds_in_a_step(machine.run) == pytest.approx(1e-3)
    assert machine.ran == ["others", "run"] * 11


def test_what_most_runs_take_counts_not_the_best(monkeypatch):
    machine = _Machine(monkeypatch, itertools.cycle([1e-3, 1.05e-3, 1.05e-3]))
    assert seconds_in_a_step(machine.run) == pytest.approx(1.05e-3)


def test_a_long_run_is_timed_once(monkeypatch):
    machine = _Machine(monkeypatch, [0.5])
    assert seconds_in_a_step(machine.run) == pytest.approx(0.5)


def test_each_run_waits_for_full_speed_behind_the_others(monkeypatch):
    machine = _Machine(monkeypatch, itertools.repeat(1e-3))
    machine.wait = lambda: machine.ran.append("wait")
    assert seconds_in_a_step(machine.run, machine) == pytest.approx(1e-3)
    assert machine.ran == ["others", "wait", "run"] * 9
