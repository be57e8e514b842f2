"""Recordings: what the builder takes down is what the trace holds, and it survives pickle and JSON."""

import json
import pickle

import pytest

from snugfit.errors import InputError
from snugfit.recording.trace import Event, OperatorRun, Trace, TraceBuilder


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


def test_events_read_as_they_happened():
    assert list(recording().events()) == [
        Event("enter", "forward", 1),
        Event("alloc", 0),
        Event("workspace", 0),
        Event("alloc", 1),
        Event("resize", 0),
        Event("free", 1),
        Event("leave", "forward", 1),
        Event("empty_cache", 0),
    ]


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


def test_pickle_and_json_bring_back_an_equal_trace():
    trace = recording()
    assert pickle.loads(pickle.dumps(trace)) == trace
    assert Trace.from_plain(json.loads(json.dumps(trace.to_plain()))) == trace


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
