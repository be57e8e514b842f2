"""Replays: peaks and where they fall, running out of memory, the smallest card that suffices."""

import dataclasses
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snugfit.recording.allocator import AllocatorConfig
from snugfit.recording.replay import Player, replay
from snugfit.recording.replays import Replays
from snugfit.recording.tensor_bytes import TensorBytes
from snugfit.recording.trace_builder import TraceBuilder

MIB = 2**20


def trace_of(script):
    """`a=3` allocates 3 MiB in module a, `h:a=3` on the host, `a-` frees, `a->5` resizes, `w*9` is a workspace."""
    build, held = TraceBuilder(), {}
    for word in script.split():
        if word == "!":
            build.empty_cache()
        elif "->" in word:
            name, size = word.split("->")
            build.resize(held[name], int(float(size) * MIB))
        elif word.endswith("-"):
            build.free(held[word[:-1]])
        elif "*" in word:
            name, size = word.split("*")
            build.workspace(int(float(size) * MIB), module=name, operator="mm", phase="forward")
        else:
            place, _, rest = word.rpartition(":")
            name, size = rest.split("=")
            held[name] = build.alloc(
                int(float(size) * MIB), place="host" if place else "device", module=name, operator="make", phase="build"
            )
    return build.build()


@pytest.mark.parametrize(
    "script, peak, at, reserved, host",
    [
        ("", 0, "", 0, 0),
        ("a=3 b=4", 7, "b", 20, 0),
        ("a=30 a- b=20", 30, "a", 30, 0),
        ("a=12 w*30 b=14", 42, "w", 42, 0),  # the workspace is the peak
        ("a=12 h:b=50 b- h:c=20", 12, "a", 12, 50),
        ("a=30 a->0 b=20 a->30 b-", 50, "b", 60, 0),  # b took a part of what a gave back
        ("a=30 a->40", 70, "a", 70, 0),  # grows: old and new live together
        ("a=0 b=12", 12, "b", 12, 0),  # nothing takes nothing
        ("a=30 a- ! b=12", 30, "a", 30, 0),
    ],
)
def test_peaks(script, peak, at, reserved, host):
    done = replay(trace_of(script))
    assert (done.peak_allocated_bytes, done.peak_reserved_bytes) == (peak * MIB, reserved * MIB)
    assert done.peak_module == at
    assert (done.host_peak_bytes, done.shortage) == (host * MIB, None)
    assert done.peak_allocated_bytes <= done.peak_with_host_bytes <= done.peak_allocated_bytes + done.host_peak_bytes
    assert done.peak_requested_bytes <= done.peak_allocated_bytes <= done.reserved_at_peak_bytes


def test_where_host_and_device_are_one_memory_their_peak_is_that_of_both_together():
    assert replay(trace_of("a=3 h:b=2 a- h:c=4 d=1 b- c-")).peak_with_host_bytes == 7 * MIB  # b, c and d


def test_where_it_runs_out():
    done = replay(trace_of("a=30 w*10 b=40"), capacity_bytes=60 * MIB)
    assert (done.shortage, done.retries) == (("build", "make", "b"), 1)
    assert replay(trace_of("a=30 w*40"), capacity_bytes=60 * MIB).shortage == ("forward", "mm", "w")


def test_smallest_card_is_smaller_than_the_reserved_peak():
    trace = trace_of("a=30 a- b=40 b- c=50")
    assert replay(trace).peak_reserved_bytes == 120 * MIB
    assert Replays(trace).smallest_bytes == 50 * MIB
    assert Replays(trace, AllocatorConfig(expandable_segments=True)).smallest_bytes == 60 * MIB  # granules of 20


@dataclasses.dataclass
class Card:
    memory_bytes: int | None
    context_bytes: int = 0


def test_fits_takes_the_context_off():
    trace = trace_of("a=30 a- b=40 b- c=50")
    assert Replays(trace).fits(Card(50 * MIB)) == (True, 0)
    assert Replays(trace).fits(Card(50 * MIB, 10 * MIB)) == (False, -10 * MIB)
    assert Replays(trace).fits(Card(500 * MIB, 10 * MIB)) == (True, 440 * MIB)
    assert Replays(trace).fits(Card(None)) == (True, None)


def test_where_tensors_are_counted_a_budget_is_exact_to_the_byte():
    trace = trace_of("a=30 a- b=40 h:c=4 b- c-")
    need = 44 * MIB
    assert Replays(trace, TensorBytes()).smallest_bytes == need
    assert Replays(trace, TensorBytes()).fits(Card(need + 5)) == (True, 5)


def test_a_player_stops_inside_of_a_workspace():
    player = Player(trace_of("a=30 w*40 b=1"))
    player.play(through=1)
    assert player.workspace is not None and player.allocator.allocated_bytes == 70 * MIB


def test_a_player_goes_on_where_it_stopped():
    trace = trace_of("a=30 h:b=5 c=12 b- a- d=3")
    player = Player(trace)
    for i in range(len(trace)):
        player.play(through=i)
    assert player.allocator.peak_allocated_bytes == replay(trace).peak_allocated_bytes
    assert (player.host_bytes, player.host_peak_bytes) == (0, 5 * MIB)


LIVES = st.lists(st.tuples(st.integers(0, 40 * MIB), st.integers(0, 40)), max_size=50)


@settings(max_examples=60, deadline=None)
@given(LIVES, st.booleans())
def test_random_runs(lives, expandable):
    config = AllocatorConfig(expandable_segments=expandable)
    build, living = TraceBuilder(), []
    requested = most = 0
    for nbytes, victim in lives:
        living.append((build.alloc(nbytes), nbytes))
        requested += nbytes
        most = max(most, requested)
        if victim < len(living):
            storage, size = living.pop(victim)
            build.free(storage)
            requested -= size
    trace = build.build()
    done = replay(trace, config)
    assert most <= done.peak_allocated_bytes <= done.peak_reserved_bytes
    smallest = Replays(trace, config).smallest_bytes
    assert most <= smallest <= done.peak_reserved_bytes
    at = replay(trace, config, smallest)
    assert at.shortage is None and at.peak_reserved_bytes <= smallest
    if smallest:
        assert replay(trace, config, smallest - 2 * MIB).shortage is not None
    same = replay(trace, config, done.peak_reserved_bytes)
    assert (same.retries, same.peak_reserved_bytes) == (0, done.peak_reserved_bytes)


WORDS = st.lists(st.tuples(st.sampled_from("aawr-!h"), st.integers(0, 40 * MIB), st.integers(0, 40)), max_size=60)


@settings(max_examples=60, deadline=None)
@given(WORDS, st.booleans(), st.lists(st.integers(0, 400), min_size=1, max_size=30))
def test_capacities_asked_one_after_the_other_are_answered_as_each_alone(words, expandable, capacities):
    """Some are answered without a replay, because of what an earlier one has shown."""
    config = AllocatorConfig(expandable_segments=expandable)
    build, living = TraceBuilder(), []
    for word, nbytes, number in words:
        if word in "ah":
            place = "device" if word == "a" else "host"
            living.append(build.alloc(nbytes, place=place, stream=number % 2))
        elif word == "w":
            build.workspace(nbytes, operator="mm", module="", phase="", stream=number % 2)
        elif word == "!":
            build.empty_cache()
        elif number < len(living):
            if word == "r":
                build.resize(living[number], nbytes)
            else:
                build.free(living.pop(number))
    trace = build.build()
    replays = Replays(trace, config)
    for capacity in capacities:
        alone = replay(trace, config, capacity * MIB).shortage is None
        assert replays.fits(Card(capacity * MIB))[0] == alone, capacity


def test_work_grows_with_the_events_alone():
    """What it takes in seconds is measured by benchmarks/estimate_speed.py."""
    few, many = (_calls(_busy_trace(count)) for count in (2_000, 8_000))
    assert many < 4.4 * few
    assert many < 25 * len(_busy_trace(8_000))


def _busy_trace(count):
    build, living = TraceBuilder(), []
    for i in range(count):
        living.append(build.alloc((1 + i * 7919 % 997) * 50_000))
        if len(living) > 400:
            build.free(living.pop(i * 31 % 400))
    return build.build()


def _calls(trace):
    """Calls of functions, those of C included."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        replay(trace)
    finally:
        sys.setprofile(None)
    return count
