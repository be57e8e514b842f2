"""Memory without an allocator: literal little tables, and a replay of one."""

import pytest

from snugfit.recording.allocator import OutOfMemory
from snugfit.recording.anatomy import anatomy
from snugfit.recording.replay import replay
from snugfit.recording.replays import Replays
from snugfit.recording.tensor_bytes import TensorBytes, TensorCounter, allocator_for
from snugfit.recording.trace_builder import TraceBuilder


def test_every_tensor_counts_with_its_own_bytes():
    counter = allocator_for(TensorBytes(), 1000)
    assert isinstance(counter, TensorCounter)
    first, second = counter.malloc(1), counter.malloc(700)
    assert (counter.allocated_bytes, counter.reserved_bytes, counter.block_bytes(second)) == (701, 701, 700)
    with pytest.raises(OutOfMemory, match="needs 300 more bytes at 701 reserved"):
        counter.malloc(300)
    counter.free(first)
    counter.malloc(300)
    assert counter.peak_allocated_bytes == counter.peak_reserved_bytes == 1000


def test_a_replay_without_an_allocator():
    builder = TraceBuilder()
    kept = builder.alloc(5, category="weights", operator="a")
    builder.workspace(7, operator="b")
    builder.free(builder.alloc(3, category="activations", operator="c"))
    builder.free(kept)
    trace = builder.build()
    played = replay(trace, TensorBytes())
    assert (played.peak_allocated_bytes, played.peak_operator, played.fragmentation_bytes) == (12, "b", 0)
    found = anatomy(trace, TensorBytes(), played=played)
    assert (found.bytes_by_category["weights"], found.bytes_by_category["temporaries"]) == (5, 7)
    assert found.rounding_bytes == 0
    assert Replays(trace, TensorBytes()).smallest_bytes >= 12
