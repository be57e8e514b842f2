"""What the processes of a machine have in its host memory, from lifetimes in literal tables."""

import pytest

from snugfit.recording.host_memory import machine_host_bytes, other_host_bytes
from snugfit.recording.recording import Recording
from snugfit.recording.trace_builder import TraceBuilder
from snugfit.workload import Workload


def recording(gpus, one_builds=True):
    """A model of 100 bytes on the host while it is built, 10 that stay there, and 7 of each batch."""
    build = TraceBuilder()
    build.mark("build", entered=True)
    weights = build.alloc(100, place="host")
    build.alloc(40, place="device")
    build.alloc(10, place="host")
    build.free(weights)
    build.mark("build", entered=False)
    batch = build.alloc(5, place="host")
    build.resize(batch, 7)
    build.free(batch)
    return Recording(trace=build.build(), workload=Workload(gpus=gpus), one_builds=one_builds)


@pytest.mark.parametrize(
    ("gpus", "one_builds", "machine"),
    [
        (1, False, 100 + 10),
        (8, False, 8 * (100 + 10)),
        (8, True, 100 + 8 * 10),
        (20, True, 20 * (10 + 7)),  # more than at any time of building
    ],
)
def test_one_model_in_a_machine_where_one_builds(gpus, one_builds, machine):
    assert machine_host_bytes(recording(gpus, one_builds)) == machine


def test_what_the_others_have():
    assert other_host_bytes(recording(8)) == 10 + 7
    assert other_host_bytes(recording(8, one_builds=False)) == 100 + 10


def test_a_recording_without_a_model_that_is_built():
    build = TraceBuilder()
    build.free(build.alloc(9, place="host"))
    assert machine_host_bytes(Recording(trace=build.build(), one_builds=True)) == 9
