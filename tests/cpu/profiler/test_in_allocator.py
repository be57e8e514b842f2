"""Tensors that a library cuts out of one block of torch's allocator, told apart from those that lie elsewhere."""

import pytest

from snugfit.profiler.in_allocator import with_those_in_allocator
from snugfit.profiler.temporaries import OperatorMark
from snugfit.recording.trace_builder import TraceBuilder


def traced(*, operators=10, other=0, inside=0):
    """Host tensors of 300 and 200 bytes, born before the first operator, and 100 bytes on the device.

    `other`: bytes of a tensor of numpy's that lives as long; `inside`: what each operator takes inside itself.
    """
    builder = TraceBuilder()
    hosts = [builder.alloc(nbytes, place="host", operator="load", phase="build") for nbytes in (300, 200)]
    other = [builder.alloc(other, place="host", operator="numpy", phase="build")] if other else []
    builder.alloc(100, operator="one", phase="build")
    marks = [OperatorMark(len(builder), "one", "", "forward") for _ in range(operators)]
    for storage in (*hosts, *other):
        builder.free(storage)
    return builder.build(), marks, [100 + inside] * operators


def places(trace):
    return [row.place for row in trace.storages]


@pytest.mark.parametrize(
    ("held", "found"),
    [
        (512, "device"),  # a block for the file, a little more than its tensors
        (500, "device"),
        (499, "host"),
        (0, "host"),  # of a mapped file the allocator knows nothing
    ],
)
def test_they_are_the_bytes_that_the_allocator_has_beside_all_others(held, found):
    trace, marks, peaks = traced(inside=held)
    assert places(with_those_in_allocator(trace, marks, peaks)) == [found, found, "device"]


def test_an_operator_that_takes_less_shows_that_they_are_elsewhere():
    trace, marks, peaks = traced(inside=600)
    assert places(with_those_in_allocator(trace, marks, [*peaks[:-1], 200])) == ["host", "host", "device"]
    unknown = [*peaks[:-1], 0]  # an operator that took nothing shows nothing
    assert places(with_those_in_allocator(trace, marks, unknown)) == ["device", "device", "device"]


def test_few_operators_decide_nothing():
    trace, marks, peaks = traced(operators=4, inside=600)
    assert places(with_those_in_allocator(trace, marks, peaks)) == ["host", "host", "device"]


def test_bytes_are_given_out_once():
    builder = TraceBuilder()
    first = builder.alloc(300, place="host", operator="load", phase="build")
    marks = [OperatorMark(len(builder), "one", "", "forward") for _ in range(9)]
    second = builder.alloc(250, place="host", operator="numpy", phase="data")
    marks += [OperatorMark(len(builder), "two", "", "forward") for _ in range(9)]
    builder.free(second)
    builder.free(first)
    assert places(with_those_in_allocator(builder.build(), marks, [300] * 18)) == ["device", "host"]
