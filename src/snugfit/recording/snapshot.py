"""A predicted run as a PyTorch memory snapshot, so that the usual viewer opens it.

`torch.cuda.memory._dump_snapshot` writes a pickled dict of `segments` (what the card holds at the end) and
`device_traces` (what happened, in order); https://pytorch.org/memory_viz and `torch.cuda._memory_viz` read it. Here the
same dict is made from a replay. Where a real snapshot has stack frames, a predicted one has the operator on top, then
the path of modules from the inner to the outer, then the phase: the viewer groups by them as it does by functions.

Source: `torch/cuda/_memory_viz.py` and the typed dicts of `torch/cuda/memory.py` in torch 2.15. Times are the index of
the event in microseconds, since a replay has no clock of its own.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snugfit.recording.allocator import AllocatorConfig, CachingAllocator
from snugfit.recording.replay import Player
from snugfit.recording.trace import Storage, Trace, Workspace


def snapshot(trace: Trace, config: AllocatorConfig | None = None) -> dict[str, Any]:
    """Returns a replay in the format of `torch.cuda.memory._snapshot()`."""
    entries: list[dict[str, Any]] = []
    frames = functools.cache(_frames)

    def row_at(event: int, storage: int | None) -> Storage | Workspace:
        return trace.storages[storage] if storage is not None else trace.workspaces[trace.subjects[event]]

    def entry(action: str, event: int, address: int, nbytes: int, stream: int, stack: list[dict[str, Any]]) -> None:
        entries.append(
            {
                "action": action, "addr": address, "size": nbytes, "stream": stream, "frames": stack, "time_us": event,
                "compile_context": "N/A", "user_metadata": "",
            }
        )  # fmt: skip

    requested: dict[int, int] = {}
    stacks: dict[int, list[dict[str, Any]]] = {}

    def observe(event: int, storage: int | None, block: int, change_bytes: int) -> None:
        row = row_at(event, storage)
        stack = frames(row.phase, row.module, row.operator)
        if change_bytes > 0:
            resized = trace.values[event] if storage is not None else 0
            requested[block] = resized or row.nbytes
            stacks[block] = stack
            entry("alloc", event, block, requested[block], row.stream, stack)
        else:
            nbytes = requested.pop(block)
            del stacks[block]
            entry("free_requested", event, block, nbytes, row.stream, stack)
            entry("free_completed", event, block, nbytes, row.stream, stack)

    def observe_segment(action: str, address: int, nbytes: int, stream: int) -> None:
        event = player.event
        phase, operator, module = trace.where(event)
        entry(action, event, address, nbytes, stream, frames(phase, module, operator))

    player = Player(trace, config, observer=observe, segment_observer=observe_segment)
    player.play()
    return {
        "segments": held_segments(player.allocator, stacks),
        "device_traces": [entries],
        "allocator_settings": _settings(player.allocator.config),
        "external_annotations": [],
    }


def held_segments(
    allocator: CachingAllocator, stacks: Mapping[int, list[dict[str, Any]]] | None = None
) -> list[dict[str, Any]]:
    """Returns an allocator's segments as a snapshot lists them; `stacks`: address -> frames of the allocation."""
    stacks = stacks or {}
    segments = []
    for segment in allocator.segments():
        blocks: list[dict[str, Any]] = [
            {
                "address": block.address, "size": block.size_bytes, "requested_size": block.requested_bytes,
                "state": "active_allocated" if block.live else "inactive",
                "frames": stacks.get(block.address, []) if block.live else [],
            }
            for block in allocator.blocks(segment)
        ]  # fmt: skip
        live = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
        segments.append(
            {
                "device": 0, "address": segment.address, "total_size": segment.size_bytes, "allocated_size": live,
                "active_size": live, "requested_size": sum(block["requested_size"] for block in blocks),
                "stream": segment.stream, "segment_type": "small" if segment.small else "large",
                "segment_pool_id": (0, 0), "is_expandable": allocator.config.expandable_segments, "frames": [],
                "blocks": blocks,
            }
        )  # fmt: skip
    return segments


def write_snapshot(path: str | Path, trace: Trace, config: AllocatorConfig | None = None) -> None:
    """Writes `snapshot` as the pickle file that the viewer reads."""
    with Path(path).open("wb") as file:
        pickle.dump(snapshot(trace, config), file)


def _frames(phase: str, module: str, operator: str) -> list[dict[str, Any]]:
    parts = module.split(".") if module else []
    names = [operator or "?"] + [".".join(parts[:i]) for i in range(len(parts), 0, -1)] + [phase or "?"]
    files = ["operator"] + ["module"] * len(parts) + ["phase"]
    return [{"name": name, "filename": file, "line": 0} for name, file in zip(names, files, strict=True)]


def _settings(config: AllocatorConfig) -> dict[str, Any]:
    return {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": config.expandable_segments,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": {str(2**i): 0 for i in range(16)},
    }
