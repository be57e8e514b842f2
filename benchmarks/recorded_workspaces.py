"""What cuDNN's convolutions took inside themselves in a recorded training step, beside what is predicted without it.

The trace is PyTorch's own example of its profiler's plugin for TensorBoard (github.com/pytorch/kineto, tb_plugin/samples):
ResNet-50 of torchvision, 32 images, float32, SGD with momentum, on a V100 in 2021. It names every block that was allocated
and given back, with the operator around it; a block that a convolution takes and gives back at once is its workspace.
"""

from __future__ import annotations

import bisect
import gzip
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from snugfit.fake_device.personality import Personality
from snugfit.recording.replay import Player
from snugfit.simulator.own_step import simulate_step
from snugfit.units import MIB
from snugfit.workers.pool import Pool

TRACE = "tb_plugin_resnet50_workers0_a.pt.trace.json.gz"
KINDS = {
    "aten::cudnn_convolution": "forward",
    "aten::cudnn_convolution_backward_input": "gradient of the input",
    "aten::cudnn_convolution_backward_weight": "gradient of the weights",
}


def workspaces(trace: dict[str, Any]) -> tuple[list[int], dict[int, str]]:
    """Returns the bytes of every event of the card's allocator in order, and which of them are workspaces of what kind."""
    events = trace["traceEvents"]
    of_card = [one for one in events if one.get("name") == "[memory]" and one["args"].get("Device Type") == 1]
    of_card.sort(key=lambda one: one["ts"])
    sizes, times = [one["args"]["Bytes"] for one in of_card], [one["ts"] for one in of_card]
    found = {}
    for one in events:
        if one.get("name") in KINDS and "dur" in one:
            first = bisect.bisect_left(times, one["ts"])
            for index in range(first, bisect.bisect_right(times, one["ts"] + one["dur"]) - 1):
                if sizes[index] > 0 and sizes[index + 1] == -sizes[index]:
                    found[index] = found[index + 1] = KINDS[one["name"]]
    return sizes, found


def rise(sizes: list[int]) -> int:
    """Returns the most that is allocated over what was there at the beginning."""
    now = most = 0
    for size in sizes:
        now += size
        most = max(most, now)
    return most


def _step(model: Any, optimizer: Any, batch: Any) -> None:
    loss = F.cross_entropy(model(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def predicted_rise(pool: Pool) -> int:
    """Returns the most that a step is predicted to allocate over what is there at its beginning."""
    from torchvision.models import resnet50

    batch = torch.empty(32, 3, 224, 224, device="meta"), torch.empty(32, dtype=torch.long, device="meta")
    trace = simulate_step(
        _step, lambda: resnet50().train(), lambda weights: torch.optim.SGD(weights, lr=1e-3, momentum=0.9, foreach=False),
        batch, personality=Personality(capability=(7, 0)), pool=pool,
    ).trace  # fmt: skip
    player = Player(trace)
    player.play(through=trace.step_events()[0])
    before = player.allocator.allocated_bytes
    player.play()
    return player.allocator.peak_allocated_bytes - before


def compared(truth: Path, pool: Pool) -> dict[str, Any]:
    """Returns the recorded rise with and without workspaces, the predicted one, and the sizes of workspaces."""
    with gzip.open(truth / "kineto" / TRACE, "rt", encoding="utf-8") as file:
        sizes, inside = workspaces(json.load(file))
    with_them, without = rise(sizes), rise([size for index, size in enumerate(sizes) if index not in inside])
    predicted = predicted_rise(pool)
    kinds = {
        name: sorted({sizes[index] / MIB for index, kind in inside.items() if kind == name and sizes[index] > 0})
        for name in KINDS.values()
    }
    return {
        "trace": TRACE,
        "rise_mib": round(with_them / MIB, 1),
        "rise_without_workspaces_mib": round(without / MIB, 1),
        "predicted_rise_mib": round(predicted / MIB, 1),
        "workspaces": {
            name: {"sizes": len(seen), "median_mib": round(seen[len(seen) // 2], 1), "most_mib": round(seen[-1], 1)}
            for name, seen in kinds.items()
        },
    }  # fmt: skip
