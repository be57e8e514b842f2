"""A literal step of two blocks: what each saves, and the highest point of every stretch."""

import dataclasses

from snugfit.planner.profile import OUTSIDE, Row, profile
from snugfit.recording.operator_run import OperatorRun
from snugfit.recording.trace_builder import TraceBuilder


def run(build, module, phase):
    build.run(OperatorRun("aten.op", module, phase, 0, 0, 0, "float32", 1, "device"))


def test_two_blocks():
    build = TraceBuilder()
    weights = build.alloc(100, category="weights", phase="build")
    build.mark("forward", True, 1)
    kept = {}
    for name, saved in (("blocks.0.fc", 30), ("blocks.1.fc", 50)):
        scratch = build.alloc(7, module=name, phase="forward")
        kept[name] = build.alloc(saved, category="activations", module=name, phase="forward")
        run(build, name, "forward")
        build.free(scratch)
        run(build, name, "forward")
    loss = build.alloc(1, module="", phase="forward")
    run(build, "", "forward")
    build.mark("forward", False, 1)
    build.mark("backward", True, 1)
    for name in ("blocks.1.fc", "blocks.0.fc"):
        build.alloc(20, category="gradients", module=name, phase="backward")
        run(build, name, "backward")
        build.free(kept[name])
        run(build, name, "backward")
    build.mark("backward", False, 1)
    build.mark("optimizer", True, 1)
    build.free(build.alloc(500, category="temporaries", phase="optimizer"))
    build.mark("optimizer", False, 1)
    build.free(loss)
    build.free(weights)
    found = profile(build.build(), ["blocks.0", "blocks.1"], lambda one: 2.0)
    assert found.saved_bytes == (30, 50)
    assert found.forward_seconds == (4.0, 4.0)
    assert found.gradient_bytes == 40
    assert found.outside_bytes == 100 + 40 + 1 + 500
    assert found.rows == {
        ("forward", 0, 0): Row(100, 0, 37, ()),
        ("forward", 1, 1): Row(100, 0, 30 + 57, (0,)),
        ("forward", OUTSIDE, 2): Row(100, 0, 81, (0, 1)),
        ("backward", 1, 1): Row(100, 20, 81, (0,)),
        ("backward", 0, 0): Row(100, 40, 31, ()),
    }
    assert found.most_bytes == found.outside_bytes
    assert dataclasses.replace(found, outside_bytes=0).most_bytes == 100 + 20 + 81


def test_a_step_without_blocks_has_no_stretches():
    """A script may hold its peak outside of its steps: in what it builds."""
    build = TraceBuilder()
    build.alloc(100, category="weights", phase="build")
    found = profile(build.build(), [], lambda one: 2.0)
    assert not found.rows and found.most_bytes == found.outside_bytes == 100


def test_what_processes_tell_each_other_between_the_passes_belongs_to_no_update():
    build = TraceBuilder()
    build.alloc(100, category="weights", phase="build")
    for step in (0, 1):
        build.mark("forward", True, step)
        kept = build.alloc(30, category="activations", module="blocks.0.fc", phase="forward")
        run(build, "blocks.0.fc", "forward")
        build.mark("forward", False, step)
        build.free(build.alloc(3))
        build.mark("backward", True, step)
        build.free(kept)
        run(build, "blocks.0.fc", "backward")
        build.mark("backward", False, step)
        build.mark("optimizer", True, step)
        build.free(build.alloc(10, phase="optimizer"))
        build.mark("optimizer", False, step)
    found = profile(build.build(), ["blocks.0"], lambda one: 1.0)
    assert found.outside_bytes == 100 + 10
    assert found.rows["backward", OUTSIDE, 1] == Row(100, 0, 33, (0,))
