"""Recordings: what the builder takes down is what the trace holds, and it survives pickle."""

import pickle

import pytest

from snugfit.errors import InputError
from snugfit.recording.operator_run import OperatorRun
from snugfit.recording.trace import ALLOC, EMPTY_CACHE, FREE, MARK, RESIZE, WORKSPACE, Mark
from snugfit.recording.trace_builder import TraceBuilder


def recording():
    build = TraceBuilder()
    build.mark("forward", True, step=1)
    weight = build.alloc(100, category="weights", module="fc", operator="aten.empty", phase="build")
    build.run(OperatorRun("aten.mm.default", "fc", "forward", 8, 4, 4, "float32", 1, "device", product=(1, 2, 2, 2)))
    build.workspace(50, operator="aten.mm.default", module="fc", phase="forward")
    out = build.alloc(30, place="host", operator="aten.to", phase="forward", stream=2)
    build.resize(weight, 0)
    build.free(out)
    build.mark("forward", False, step=1)
    build.empty_cache()
    build.set_category(out, "activations")
    return build.build()


def test_events_stand_as_they_happened():
    trace = recording()
    assert list(zip(trace.kinds, trace.subjects, trace.values, strict=True)) == [
        (MARK, 0, 3), (ALLOC, 0, 0), (WORKSPACE, 0, 0), (ALLOC, 1, 0), (RESIZE, 0, 0), (FREE, 1, 0), (MARK, 0, 2),
        (EMPTY_CACHE, 0, 0),
    ]  # fmt: skip
    assert trace.marks() == [Mark(0, "forward", True, 1), Mark(6, "forward", False, 1)]


def test_a_step_lasts_until_the_next_one_begins():
    build = TraceBuilder()
    assert build.build().step_events() == (-1, 0)
    for step in (0, 1):
        build.mark("forward", True, step)
        build.free(build.alloc(8))
        build.mark("forward", False, step)
    trace = build.build()
    assert [trace.step_events(step) for step in (0, 1, None, 2)] == [(0, 4), (4, 8), (4, 8), (8, 8)]


def test_an_update_that_makes_nothing_belongs_to_the_step_before_the_mark_behind_it():
    build = TraceBuilder()
    for step in (0, 1):
        build.mark("data", True, step)
        build.free(build.alloc(8))
        build.run(OperatorRun("aten._fused_adamw_.default", "", "optimizer", 8, 4, 4, "float32", 1, "device"))
    build.mark("data", True, 2)
    assert build.build().last_step() == 1


def test_late_categories_and_places_are_kept():
    weight, out = recording().storages
    assert (weight.category, weight.place, weight.module) == ("weights", "device", "fc")
    assert (out.category, out.place, out.stream) == ("activations", "host", 2)


def test_operators_know_how_many_events_came_before():
    assert [run.at for run in recording().runs] == [2]


@pytest.mark.parametrize(
    "event, where", [(0, ("", "", "")), (1, ("build", "aten.empty", "fc")), (5, ("forward", "aten.to", ""))]
)
def test_where(event, where):
    assert recording().where(event) == where


def test_pickle_brings_back_an_equal_trace():
    trace = recording()
    assert pickle.loads(pickle.dumps(trace)) == trace


def test_unknown_category_is_refused():
    build = TraceBuilder()
    build.alloc(1, category="weight")
    with pytest.raises(InputError, match=r"'weight' does not exist\. Allowed: weights"):
        build.build()


def test_a_storage_dies_once():
    build = TraceBuilder()
    storage = build.alloc(1)
    build.free(storage)
    with pytest.raises(AssertionError):
        build.free(storage)
