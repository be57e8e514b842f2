"""The snapshot is one that PyTorch's own viewer reads."""

import pickle

import pytest

from snugfit.recording.allocator import AllocatorConfig
from snugfit.recording.replay import replay
from snugfit.recording.snapshot import snapshot, write_snapshot
from snugfit.recording.trace_builder import TraceBuilder

MIB = 2**20


def trace():
    build = TraceBuilder()
    weight = build.alloc(30 * MIB, category="weights", module="encoder.layers.0", operator="aten.empty", phase="build")
    build.alloc(700, module="head", operator="aten.mm", phase="forward")
    build.workspace(5 * MIB, module="head", operator="aten.mm", phase="forward")
    build.resize(weight, 0)
    build.resize(weight, 31 * MIB)
    build.empty_cache()
    big = build.alloc(64 * MIB, module="head", operator="aten.add", phase="backward")
    build.free(big)
    return build.build()


@pytest.mark.parametrize("config", [AllocatorConfig(), AllocatorConfig(expandable_segments=True)])
def test_torch_reads_it(config):
    viz = pytest.importorskip("torch.cuda._memory_viz", reason="torch is not installed")
    data = snapshot(trace(), config)
    assert "segments:" in viz.segsum(data)  # checks by itself that blocks fill segments
    assert "Device 0" in viz.trace(data)
    assert "aten.mm" in viz.memory(data, format_flamegraph=lambda lines: lines)
    assert "encoder.layers.0" in viz.segments(data, format_flamegraph=lambda lines: lines)
    assert "MemoryViz.js" in viz.trace_plot(data)
    assert "MemoryViz.js" in viz.segment_plot(data)
    viz.filter_alloc_free_pairs(data)
    left = [e["size"] for e in data["device_traces"][0] if e["action"] == "alloc"]
    assert left == [700, 31 * MIB]


@pytest.mark.parametrize("config", [AllocatorConfig(), AllocatorConfig(expandable_segments=True)])
def test_entries_add_up_to_the_replay(config):
    data, done = snapshot(trace(), config), replay(trace(), config)
    live, reserved, most_reserved = {}, 0, 0
    for entry in data["device_traces"][0]:
        action, size = entry["action"], entry["size"]
        if action == "alloc":
            assert entry["addr"] not in live
            live[entry["addr"]] = size
        elif action == "free_completed":
            assert live.pop(entry["addr"]) == size
        elif action in ("segment_alloc", "segment_map"):
            reserved += size
        elif action in ("segment_free", "segment_unmap"):
            reserved -= size
        most_reserved = max(most_reserved, reserved)
    assert most_reserved == done.peak_reserved_bytes
    blocks = [b for s in data["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
    assert {b["address"]: b["requested_size"] for b in blocks} == live
    assert sum(s["total_size"] for s in data["segments"]) == reserved


def test_frames_name_operator_modules_and_phase():
    first = next(e for e in snapshot(trace())["device_traces"][0] if e["action"] == "alloc")
    assert [frame["name"] for frame in first["frames"]] == [
        "aten.empty",
        "encoder.layers.0",
        "encoder.layers",
        "encoder",
        "build",
    ]


def test_the_file_is_a_pickle(tmp_path):
    write_snapshot(tmp_path / "out.pickle", trace())
    with (tmp_path / "out.pickle").open("rb") as file:
        assert pickle.load(file) == snapshot(trace())
