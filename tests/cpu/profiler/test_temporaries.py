"""Cutting an allocator's events at marks, and putting what was inside operators into a trace: literal tables."""

import pytest

from snugfit.profiler.temporaries import MARK_BYTES, OperatorMark, cut_at_marks, with_temporaries
from snugfit.profiler.truth import CpuTruth, event_sizes
from snugfit.recording.replay import replay
from snugfit.recording.tensor_bytes import TensorBytes
from snugfit.recording.trace_builder import TraceBuilder

M, END = MARK_BYTES, -MARK_BYTES


@pytest.mark.parametrize(
    "sizes, peaks, rest, balance",
    [
        ([], [], 0, 0),
        ([100, M, END], [100], 0, 100),
        ([100, 30, -30, M, END], [130], 0, 100),  # 30 bytes inside the operator
        ([100, M, END, -100, 50, M, END], [100, 50], 0, 50),  # a release before the second operator
        ([100, M, END, M, END], [100, 0], 0, 100),  # an operator that takes nothing
        ([100, M, END, 20], [100], 120, 120),  # something after the last mark
        ([M, END], [0], 0, 0),
    ],
)
def test_segments(sizes, peaks, rest, balance):
    assert cut_at_marks(sizes) == (peaks, rest, balance)


def test_a_cut_goes_on_where_the_last_one_ended():
    sizes = [100, 30, -30, M, END, 7, -7, 40, M, END, -40, 1]
    whole = cut_at_marks(sizes)
    for at in range(len(sizes) + 1):
        first = cut_at_marks(sizes[:at])
        second = cut_at_marks(sizes[at:], first.balance_bytes, first.rest_peak)
        assert first.peaks + second.peaks == whole.peaks
        assert second.balance_bytes == whole.balance_bytes


def test_what_another_thread_releases_is_counted_where_it_came():
    truth = CpuTruth()
    truth.mark()
    truth.released_elsewhere(60)
    truth.mark()
    truth.take([100, M, END, 20, M, END])
    assert (truth.peaks, truth.peak_bytes, truth.balance_bytes) == ([100, 60], 100, 60)
    truth.released_elsewhere(60)
    truth.take([5])
    assert (truth.peak_bytes, truth.balance_bytes) == (100, 5)


def traced():
    """Three operators; the second one's result replaces the first one's, the third makes nothing."""
    builder = TraceBuilder()
    first = builder.alloc(100, category="weights", operator="one", phase="build")
    marks = [OperatorMark(len(builder), "one", "", "build")]
    builder.alloc(50, operator="two", phase="forward")
    marks.append(OperatorMark(len(builder), "two", "block.1", "forward"))
    builder.free(first)
    marks.append(OperatorMark(len(builder), "three", "", "backward"))
    builder.alloc(8, place="host", operator="four")
    return builder.build(), marks


@pytest.mark.parametrize(
    "peaks, workspaces, peak, where",
    [
        ([100, 150, 0], [], 150, ("forward", "two", "")),
        ([100, 190, 0], [("two", 40)], 190, ("forward", "two", "block.1")),
        ([100, 150, 51], [("three", 1)], 150, ("forward", "two", "")),
        ([101, 150, 400], [("one", 1), ("three", 350)], 400, ("backward", "three", "")),
        ([0, 0, 0], [], 150, ("forward", "two", "")),
    ],
)
def test_temporaries_lift_the_trace_to_the_allocators_peak(peaks, workspaces, peak, where):
    trace, marks = traced()
    lifted = with_temporaries(trace, marks, peaks)
    assert [(work.operator, work.nbytes) for work in lifted.workspaces] == workspaces
    assert len(lifted) == len(trace) + len(workspaces)
    played = replay(lifted, TensorBytes())
    assert played.peak_allocated_bytes == peak
    assert (played.peak_phase, played.peak_operator, played.peak_module) == where
    assert played.host_peak_bytes == 8


def test_every_operator_needs_a_peak():
    trace, marks = traced()
    with pytest.raises(ValueError, match="zip"):
        with_temporaries(trace, marks, [0])


def test_cuda_history_counts_what_was_given_and_what_was_really_taken_back():
    entries = [
        {"action": "segment_alloc", "size": 2097152},
        {"action": "alloc", "size": 100},
        {"action": "alloc", "size": M},
        {"action": "free_requested", "size": M},
        {"action": "free_completed", "size": M},
        {"action": "free_requested", "size": 100},
        {"action": "free_completed", "size": 100},
        {"action": "segment_free", "size": 2097152},
    ]
    assert event_sizes(entries) == [100, M, END, -100]
