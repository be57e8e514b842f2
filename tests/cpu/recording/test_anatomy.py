"""The anatomy: categories add up to the peak, blocks are found, the timeline keeps the peak."""

import random

import pytest

from snugfit.recording.anatomy import OUTSIDE, anatomy, block_of, timeline
from snugfit.recording.replay import replay
from snugfit.recording.trace import CATEGORIES
from snugfit.recording.trace_builder import TraceBuilder

MIB = 2**20


def random_trace(seed, events=600):
    rng, build, living = random.Random(seed), TraceBuilder(), []
    build.mark("forward", True)
    for _ in range(events):
        module = rng.choice(["", "head", "encoder.layers.0.fc", "encoder.layers.1.attn.out", "conv1"])
        if rng.random() < 0.1:
            build.workspace(rng.randint(1, 60 * MIB), module=module, operator="conv", phase="forward")
        elif rng.random() < 0.55 or not living:
            living.append(build.alloc(rng.randint(0, 30 * MIB), module=module, category=rng.choice(CATEGORIES)))
        else:
            build.free(living.pop(rng.randrange(len(living))))
    build.mark("forward", False)
    return build.build()


@pytest.mark.parametrize("seed", range(8))
def test_everything_adds_up_to_the_peak(seed):
    trace = random_trace(seed)
    peak = replay(trace).peak_allocated_bytes
    parts = anatomy(trace, largest=10**6)
    assert parts.peak_allocated_bytes == peak == sum(parts.bytes_by_category.values())
    assert sum(block.size_bytes for block in parts.blocks) == peak
    assert sum(tensor.size_bytes for tensor in parts.largest) == peak
    assert sum(source.size_bytes for source in parts.sources) == peak
    assert sum(tensor.size_bytes - tensor.nbytes for tensor in parts.largest) == parts.rounding_bytes
    sizes = [tensor.size_bytes for tensor in parts.largest]
    assert sizes == sorted(sizes, reverse=True)


def test_rounding_goes_to_the_category_and_a_workspace_to_temporaries():
    build = TraceBuilder()
    build.alloc(11 * MIB, category="weights", module="fc", operator="empty")  # gets the whole segment of 12 MiB
    gone = build.alloc(30 * MIB, category="gradients")
    build.free(gone)
    build.workspace(40 * MIB, module="fc", operator="mm", phase="forward")
    parts = anatomy(build.build())
    assert {name: size for name, size in parts.bytes_by_category.items() if size} == {
        "weights": 12 * MIB,
        "temporaries": 40 * MIB,
    }
    assert [(t.size_bytes, t.module, t.operator) for t in parts.largest] == [
        (40 * MIB, "fc", "mm"),
        (12 * MIB, "fc", "empty"),
    ]
    assert parts.rounding_bytes == MIB


def test_blocks_come_by_name_with_numbers_as_numbers():
    build = TraceBuilder()
    for module in ("h.10.mlp", "head", "h.9.attn", "", "h.10"):
        build.alloc(MIB, module=module, category="activations")
    found = anatomy(build.build(), blocks=("h.9", "h.10")).blocks
    assert [(block.name, block.size_bytes, block.bytes_by_category) for block in found] == [
        (OUTSIDE, MIB, {"activations": MIB}),
        ("h.9", MIB, {"activations": MIB}),
        ("h.10", 2 * MIB, {"activations": 2 * MIB}),
        ("head", MIB, {"activations": MIB}),
    ]


def test_sources_put_equal_blocks_together_and_say_the_text_of_a_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("import torch\nx = x + y  # here\n")
    build = TraceBuilder()
    for module in ("h.0.mlp.1", "h.1.mlp.1", "h.1.mlp.2"):
        build.alloc(MIB, module=module, category="activations", line=f"{tmp_path}/net.py:2")
    build.alloc(MIB, module="h.1.mlp.1", category="weights")
    build.alloc(4 * MIB, category="activations", line="/usr/lib/site-packages/timm/models/vit.py:7")
    found = anatomy(build.build(), blocks=("h.0", "h.1")).sources
    assert [(row.module, row.line, row.code, row.category, row.tensors) for row in found] == [  # all are at the peak
        ("", "timm/models/vit.py:7", "", "activations", 1),
        ("h.*.mlp.1", "net.py:2", "x = x + y  # here", "activations", 2),
        ("h.*.mlp.2", "net.py:2", "x = x + y  # here", "activations", 1),
        ("h.*.mlp.1", "", "", "weights", 1),
    ]


def test_a_trace_without_allocations_has_an_empty_anatomy():
    parts = anatomy(TraceBuilder().build())
    assert (parts.peak_allocated_bytes, parts.largest, parts.blocks) == (0, (), ())


@pytest.mark.parametrize(
    "module, block",
    [
        ("encoder.layers.3.mlp.0", "encoder.layers.3"),
        ("encoder.layers.30.mlp.0", "encoder"),
        ("encoder.layers.3", "encoder.layers.3"),
        ("layer1.0.conv2", "layer1"),
        ("lm_head", "lm_head"),
        ("embeddings.word", "embeddings"),
        ("", OUTSIDE),
    ],
)
def test_block_of(module, block):
    assert block_of(module, {"encoder.layers.3", "head.0"}) == block


@pytest.mark.parametrize("points", [1, 7, 100, 10_000])
def test_a_thinned_timeline_keeps_the_peak(points):
    trace = random_trace(3)
    line = timeline(trace, points=points)
    assert len(line.events) <= points
    assert max(line.total_bytes) == replay(trace).peak_allocated_bytes
    assert all(total <= reserved for total, reserved in zip(line.total_bytes, line.reserved_bytes, strict=True))
    assert line.marks == ((0, "forward", True, 0), (len(trace) - 1, "forward", False, 0))


def test_a_full_timeline_ends_with_what_still_lives():
    build = TraceBuilder()
    first = build.alloc(12 * MIB, category="weights")
    build.alloc(14 * MIB, category="gradients")
    build.free(first)
    line = timeline(build.build())
    assert line.bytes_by_category["weights"] == (12 * MIB, 12 * MIB, 0)
    assert line.bytes_by_category["gradients"] == (0, 14 * MIB, 14 * MIB)


def test_sources_know_what_a_place_has_at_most_beside_the_peak():
    build = TraceBuilder()
    early = [build.alloc(3 * MIB, module="a", line="net.py:1") for _ in range(2)]
    for storage in early:
        build.free(storage)
    build.free(build.alloc(1000, module="b"))
    build.resize(build.alloc(MIB, module="d"), 2 * MIB)
    build.alloc(30 * MIB, module="c", category="weights")
    found = {row.module: (row.tensors, row.size_bytes > 0, row.most_bytes) for row in anatomy(build.build()).sources}
    assert found == {"c": (1, True, 30 * MIB), "d": (1, True, 2 * MIB), "a": (0, False, 6 * MIB)}
