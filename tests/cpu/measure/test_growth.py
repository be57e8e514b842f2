"""What counts as growth, told from numbers alone."""

import random

import pytest

from snugfit.measure.growth import grows

MIB = 2**20
NOISE = random.Random(0)


def leak(number):
    return 100 * MIB + number * MIB


def leak_under_varying_lengths(number):
    return 100 * MIB + number * MIB + NOISE.randrange(3 * MIB)


def leak_that_begins_late(number):
    return 100 * MIB + max(0, number - 60) * MIB


@pytest.mark.parametrize("series", [leak, leak_under_varying_lengths, leak_that_begins_late])
def test_a_leak_is_told_with_its_size(series):
    alive = [series(number) for number in range(100)]
    found = grows(alive, least_bytes=2**12)
    assert found is not None
    assert found.per_step_bytes == pytest.approx(MIB, rel=0.15)


def test_a_slow_leak_is_told_later():
    alive = [10**10 + number * 200_000 for number in range(1100)]
    assert grows(alive[:40], least_bytes=2**12) is None
    assert grows(alive, least_bytes=2**12).per_step_bytes == 200_000


def test_a_series_with_a_value_every_few_steps_is_told_by_step():
    assert grows([leak(number) for number in range(40)], least_bytes=1, stride=4).per_step_bytes == MIB // 4


QUIET = {
    "the same": lambda number: 100 * MIB,
    "varying lengths": lambda number: 100 * MIB + NOISE.randrange(20 * MIB),
    "state that appears at first": lambda number: 100 * MIB + min(number, 2) * 50 * MIB,
    "a cache that fills once": lambda number: 100 * MIB + (number > 20) * 30 * MIB,
    "evaluations": lambda number: 100 * MIB + (number % 25 == 0) * 60 * MIB,
    "lengths that rise through an epoch": lambda number: 100 * MIB + number % 30 * MIB,
    "a scalar kept at each step": lambda number: 100 * MIB + number * 512,
    "less and less": lambda number: 200 * MIB - number * MIB,
}


@pytest.mark.parametrize("name", QUIET)
def test_what_only_varies_is_no_growth(name):
    alive = [QUIET[name](number) for number in range(301)]
    ends = (12, 40, 100, 301) if "rise" not in name else (301,)
    assert [grows(alive[:end], least_bytes=2**12) for end in ends] == [None] * len(ends)
