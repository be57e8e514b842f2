"""What a card's allocator did in runs whose reserved bytes are predicted badly, event by event, to be replayed anywhere.

Kept as torch's snapshots are, without addresses of code, so that `benchmarks.real_traces` replays them: whether it is the
order of events that was predicted wrongly, or what the allocator does with it.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.configurations import BY_NAME, cases_named
from benchmarks.gpu.part import Case, Part, Place
from snugfit.units import format_bytes

RUNS = (
    "resnet50 optimizer=sgd optimizer_impl=for-loop",
    "mobilenetv3 precision=bf16-true",
    "convnext_tiny step_in_backward=True checkpoint=all",
    "qwen3_0.6b checkpoint=all precision=bf16-mixed",
    "vit_b_16 freeze=encoder.* precision=bf16-mixed",
    "resnet50 checkpoint=all precision=bf16-true",
)
"""Configurations of the tuning half, since what is seen here is used to improve predictions; the most informative first."""
_MOST_EVENTS = 200_000
_COLUMNS = ("action", "addr", "size", "stream")


def cases(place: Place) -> Sequence[Case]:
    """Returns the runs."""
    return cases_named(RUNS, place, "" if place.kind == "cuda" else "only a card has such an allocator")


def measure(name: str, place: Place) -> dict[str, Any]:
    """Trains as for an accuracy row, and returns its bytes and the history, as base64 of a snapshot's gzip."""
    import torch

    from benchmarks.gpu import training_run
    from snugfit.private_torch import allocators

    device = torch.device("cuda", 0)
    allocators.start_cuda_history(device, _MOST_EVENTS)
    try:
        found = training_run.measure(BY_NAME[name].run(place.kind), place)
        events, segments = allocators.cuda_history(device), torch.cuda.memory_snapshot()
    finally:
        allocators.stop_cuda_history(device)
    history = {
        "segments": segments,
        "device_traces": [{column: [event.get(column, 0) for event in events] for column in _COLUMNS}],
        "allocator_settings": {},
    }
    packed = gzip.compress(json.dumps(history, default=str).encode())
    kept = {key: found[key] for key in ("allocated_bytes", "reserved_bytes")}
    return {**kept, "events": len(events), "history": base64.b64encode(packed).decode()}


def _line(row: dict[str, Any]) -> str:
    found = row["measured"]
    return f"{found['events']} events, {format_bytes(found['reserved_bytes'])} reserved"


PART = Part(
    name="histories",
    title="What the allocator did",
    cases=cases,
    measure=measure,
    line=_line,
    first=2,
    timed=False,
    limit_seconds=120,
)
