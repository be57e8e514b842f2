"""Recorded allocator histories: walked back to their beginning, and replayed from there."""

import gzip
import json
import random

import pytest
from benchmarks import real_traces

from snugfit.recording.allocator import CachingAllocator
from snugfit.units import MIB


def history(seed, *, warm):
    """A snapshot as torch writes it, of an allocator that had done `warm` things before it was listened to."""
    rng, events, live = random.Random(seed), [], []

    def note(action, address, size, stream):
        events.append((action, address, size, stream))

    allocator = CachingAllocator(observer=note)
    for step in range(warm + 300):
        if step == warm:
            events.clear()
        if live and rng.random() < 0.48:
            block, size = live.pop(rng.randrange(len(live)))
            allocator.free(block)
            events.append(("free_completed", block, size, 0))
        elif step % 97 == 96:
            allocator.empty_cache()
        else:
            size = rng.choice([1, 700, 40_000, MIB, 3 * MIB, 9 * MIB + 5, 30 * MIB])
            block = allocator.malloc(size)
            live.append((block, size))
            events.append(("alloc", block, size, 0))
    segments = [
        {
            "address": one.address,
            "total_size": one.size_bytes,
            "stream": one.stream,
            "segment_type": "small" if one.small else "large",
            "blocks": [
                {"address": block.address, "size": block.size_bytes, "state": "active_allocated" if block.live else ""}
                for block in allocator.blocks(one)
            ],
        }
        for one in allocator.segments()
    ]  # fmt: skip
    names = ("action", "addr", "size", "stream")
    return {
        "segments": segments,
        "device_traces": [{}, dict(zip(names, map(list, zip(*events, strict=True)), strict=True))],
        "allocator_settings": {},
    }


def replayed(snapshot, folder):
    with gzip.open(folder / "one.json.gz", "wt") as file:
        json.dump(snapshot, file)
    return dict(real_traces.histories(folder))["one"]


@pytest.mark.parametrize("warm", [0, 200])
@pytest.mark.parametrize("seed", range(4))
def test_a_history_is_replayed_from_the_state_in_which_it_began(seed, warm, tmp_path):
    found = replayed(history(seed, warm=warm), tmp_path)
    assert found.requests > 100 and found.segments > 0
    assert found.same_reserved == found.requests and found.same_block == found.requests
    assert found.peak_reserved_bytes == found.predicted_peak_reserved_bytes


def test_another_allocator_is_noticed(tmp_path):
    snapshot = history(1, warm=0)
    trace = snapshot["device_traces"][1]
    rows = list(zip(*trace.values(), strict=True))
    grown = next(i for i, row in enumerate(rows) if row[0] == "segment_alloc" and row[2] == 20 * MIB)
    rows[grown] = ("segment_alloc", rows[grown][1], 22 * MIB, 0)
    for segment in snapshot["segments"]:
        if segment["address"] == rows[grown][1]:
            segment["total_size"] = 22 * MIB
    snapshot["device_traces"][1] = dict(zip(trace, map(list, zip(*rows, strict=True)), strict=True))
    found = replayed(snapshot, tmp_path)
    assert found.same_reserved < found.requests
