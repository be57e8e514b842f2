"""Reserved memory that tensors do not need: small recordings by hand."""

from snugfit.recording.fragmentation import fragmentation
from snugfit.recording.replay import replay
from snugfit.recording.trace_builder import TraceBuilder
from snugfit.report.estimate_advice import fragmentation_in_words
from snugfit.units import MIB


def looked_at(builder):
    trace = builder.build()
    return fragmentation(trace, replay(trace))


def steps(builder, *sizes, count=2):
    """Steps that take and give back blocks of some MiB, after what the builder holds."""
    for step in range(count):
        builder.mark("forward", True, step)
        for size in sizes:
            builder.free(builder.alloc(size * MIB))
        builder.mark("forward", False, step)


def test_a_full_cache_is_not_looked_into():
    builder = TraceBuilder()
    builder.alloc(100 * MIB)
    steps(builder, 40)
    assert looked_at(builder) is None


def test_what_only_building_needed_is_given_back_by_emptying_once():
    builder = TraceBuilder()
    first = [builder.alloc(100 * MIB), builder.alloc(100 * MIB)]
    for one in first:
        builder.free(one)
    builder.alloc(150 * MIB)  # finds no room in either of the two
    steps(builder, 20)
    found = looked_at(builder)
    assert found.empty_after == "build" and found.emptied_bytes == 180 * MIB  # a step still takes 20 of the 200
    assert round(found.share, 3) == round(1 - 200 / 350, 3)
    assert "once after the model is built gives 180 MiB back for good" in fragmentation_in_words(found)


def test_what_only_the_first_step_needed_is_given_back_after_it():
    builder = TraceBuilder()
    builder.alloc(10 * MIB)
    builder.mark("forward", True, 0)
    for size in (60, 100, 140):
        builder.free(builder.alloc(size * MIB))
    builder.mark("forward", False, 0)
    builder.mark("forward", True, 1)
    builder.free(builder.alloc(60 * MIB))  # the second step takes one of them only
    builder.mark("forward", False, 1)
    found = looked_at(builder)
    assert found.empty_after == "first step" and found.emptied_bytes == 240 * MIB


def test_where_every_step_does_it_again_only_growing_segments_help():
    builder = TraceBuilder()
    builder.alloc(10 * MIB)
    steps(builder, 60, 100, 140, count=3)
    found = looked_at(builder)
    assert found.empty_after is None and found.emptied_bytes == 0
    assert found.expandable_bytes == 150 * MIB  # 10 and 140 in granules of 20; 60 and 100 are parts of these
    assert "expandable_segments:True reserves 150 MiB less" in fragmentation_in_words(found)
