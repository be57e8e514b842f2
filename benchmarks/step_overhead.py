"""Our step beside a hand-written loop with the same techniques: time and peak memory, paired, in one process.

Each case trains two copies of one model on the same batches, one step of each in turn, so that a change of the machine's
speed meets both. The hand-written loop is what a careful engineer writes with plain torch. The peak is counted from the
allocator's events (CUDA: its statistics). The last line printed is the JSON document that is also written to
`benchmarks/results/step_overhead.json`.

    python -m benchmarks.step_overhead [--pairs 30] [--cases plain,checkpoint]
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import gc
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torchvision.models import VisionTransformer

import snugfit
from benchmarks.results_file import machine, name_for, write
from snugfit import Recipe

BATCH, CLASSES = 32, 10
MICROBATCH = BATCH // 4
Step = Callable[[Any], None]


@dataclasses.dataclass(frozen=True)
class Shape:
    """Size of the transformer and its images."""

    image: int
    patch: int
    layers: int
    heads: int
    width: int


SMALL = Shape(image=32, patch=4, layers=4, heads=4, width=192)
"""A plain step takes 60 ms or more on two cores; on a card the host decides its time."""
LARGE = Shape(image=224, patch=16, layers=12, heads=12, width=768)
"""ViT-B/16: on a card the card decides its time."""


def make_model(shape: Shape = SMALL) -> nn.Module:
    """A vision transformer with the same weights every time."""
    torch.manual_seed(0)
    return VisionTransformer(
        image_size=shape.image,
        patch_size=shape.patch,
        num_layers=shape.layers,
        num_heads=shape.heads,
        hidden_dim=shape.width,
        mlp_dim=4 * shape.width,
        num_classes=CLASSES,
    )


def make_batches(device: torch.device, count: int, shape: Shape = SMALL) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Random images and labels on the device."""
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(BATCH, 3, shape.image, shape.image, generator=generator).to(device),
            torch.randint(0, CLASSES, (BATCH,), generator=generator).to(device),
        )
        for _ in range(count)
    ]


def hand_plain(model: nn.Module, device: torch.device) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(batch: Any) -> None:
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def hand_bf16_mixed(model: nn.Module, device: torch.device) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(batch: Any) -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def hand_microbatch(model: nn.Module, device: torch.device) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(batch: Any) -> None:
        total = torch.zeros((), device=device)  # the batch's loss, as every loop logs it
        for images, labels in zip(batch[0].split(MICROBATCH), batch[1].split(MICROBATCH), strict=True):
            loss = F.cross_entropy(model(images), labels) * (len(labels) / len(batch[1]))
            total += loss.detach()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def hand_checkpoint(model: nn.Module, device: torch.device) -> Step:
    for block in model.encoder.layers:
        forward = block.forward
        block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)
    return hand_plain(model, device)


def hand_step_in_backward(model: nn.Module, device: torch.device) -> Step:
    optimizers = {weight: torch.optim.AdamW([weight], fused=True) for weight in model.parameters()}

    def update(weight: nn.Parameter) -> None:
        optimizers[weight].step()
        weight.grad = None

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(update)

    def step(batch: Any) -> None:
        F.cross_entropy(model(batch[0]), batch[1]).backward()

    return step


CASES: dict[str, tuple[Callable[[nn.Module, torch.device], Step], Recipe]] = {
    "plain": (hand_plain, Recipe()),
    "bf16-mixed": (hand_bf16_mixed, Recipe(precision="bf16-mixed")),
    "microbatch": (hand_microbatch, Recipe(microbatch_size=MICROBATCH)),
    "checkpoint": (hand_checkpoint, Recipe(checkpoint="all")),
    "step_in_backward": (hand_step_in_backward, Recipe(step_in_backward=True)),
}


def our_step(model: nn.Module, recipe: Recipe, device: torch.device) -> Step:
    """The same by `snugfit.prepare`."""
    trainer = snugfit.prepare(
        model, recipe, loss=lambda output, batch: F.cross_entropy(output, batch[1]), device=device, batch_size=BATCH
    )
    return lambda batch: (trainer.step(batch), None)[1]


def paired(first: Step, second: Step, batches: list[Any], pairs: int, device: torch.device) -> dict[str, Any]:
    """Seconds of both and the median of the pairs' ratios; who goes first alternates."""
    times: tuple[list[float], list[float]] = ([], [])
    gc.disable()
    try:
        for number in range(pairs):
            batch = batches[number % len(batches)]
            for which in (0, 1) if number % 2 else (1, 0):
                times[which].append(step_seconds((first, second)[which], batch, device))
    finally:
        gc.enable()
    ratios = [ours / hand for hand, ours in zip(*times, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "hand_step_seconds": statistics.median(times[0]),
        "our_step_seconds": statistics.median(times[1]),
        "ratio_median": statistics.median(ratios),
        "ratio_quartiles": [quartiles[0], quartiles[2]],
    }


def step_seconds(step: Step, batch: Any, device: torch.device) -> float:
    """Seconds of one step: between two events of the card's stream, or by the clock on a CPU."""
    if device.type == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        step(batch)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3
    start = time.perf_counter()
    step(batch)
    return time.perf_counter() - start


def peak_bytes(make: Callable[[], Step], batch: Any, device: torch.device) -> int:
    """Peak tensor bytes of three steps, above what there was before the optimizer was made."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step = make()
        for _ in range(3):
            step(batch)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step = make()
        for _ in range(3):
            step(batch)
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def measure_case(name: str, device: torch.device, pairs: int, shape: Shape = SMALL) -> dict[str, Any]:
    """Times and peaks of one case: the step by hand and ours, in turn on the same batches."""
    by_hand, recipe = CASES[name]
    batches = make_batches(device, 4, shape)
    steps, peaks = [], []
    for make in (lambda model: by_hand(model, device), lambda model: our_step(model, recipe, device)):
        model = make_model(shape).to(device)
        peaks.append(peak_bytes(lambda: make(model), batches[0], device))  # noqa: B023 - called in this turn of the loop
        gc.collect()
        steps.append(make(copy.deepcopy(make_model(shape)).to(device)))
    for _ in range(3):
        for step in steps:
            step(batches[0])
    return {
        "case": name,
        "recipe": recipe.to_mapping(defaults=False),
        **paired(steps[0], steps[1], batches, pairs, device),
        "hand_peak_bytes": peaks[0],
        "our_peak_bytes": peaks[1],
    }


def describe(row: dict[str, Any]) -> str:
    """One case in one line."""
    return (
        f"{row['hand_step_seconds'] * 1e3:8.1f} ms by hand  {row['our_step_seconds'] * 1e3:8.1f} ms ours  "
        f"ratio {row['ratio_median']:.4f} ({row['ratio_quartiles'][0]:.4f} to {row['ratio_quartiles'][1]:.4f})  "
        f"peak {row['hand_peak_bytes']} and {row['our_peak_bytes']} bytes"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=40, help="timed steps of each")
    parser.add_argument("--cases", default=",".join(CASES), help="names, separated by commas")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = []
    for name in args.cases.split(","):
        rows.append(measure_case(name, device, args.pairs))
        print(f"{name:18} {describe(rows[-1])}", flush=True)
    write(name_for("step_overhead", device), {"pairs": args.pairs, "batch_size": BATCH, "rows": rows})
    print(json.dumps({"machine": machine(), "rows": rows}))


if __name__ == "__main__":
    main()
