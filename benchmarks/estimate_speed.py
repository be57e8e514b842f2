"""How long an estimate takes, beside torch's own MemTracker under fake tensors on the same model in the same run.

ViT-L/16 at 224 x 224, batch 64, fp32, Adam, warm (a worker that has loaded torch and seen the model once); the cold
command; and a Llama-shaped model of 8 billion parameters with full AdamW in bf16, with 8-bit state stepped in backward, with
LoRA and with QLoRA, each in a worker that has loaded the libraries, with the memory of its process. Bounds that the package
sets itself: 5 times faster than MemTracker, warm 1.5 s, cold 6 s, 8 billion parameters 10 s and 1.5 GB. Processor time
stands beside wall time, which depends on what else the machine does.

Several GPUs, as typed, from the start of the command to its end: models shaped like Llama 3 of 8 and 70 billion parameters,
estimated and planned. Bounds: an estimate 15 s, a plan 300 s on two cores, 4,096 processes at most 1.5 times what 8 take.
Processor time is that of all processes of a command; with two workers a quiet machine with two cores takes about half of it.

    python benchmarks/estimate_speed.py                  (writes benchmarks/results/estimate_speed.json)
    python benchmarks/estimate_speed.py --gpus [WORD]    (its rows of several GPUs only, by a word in their name)
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import snugfit
from llama_shapes import LLAMA_8B, LLAMA_70B
from results_file import RESULTS, machine, write
from snugfit.recipe import Recipe
from snugfit.recording.replay import replay
from snugfit.recording.trace_builder import TraceBuilder
from snugfit.simulator.estimate import estimate_named
from snugfit.simulator.request import NamedModel
from snugfit.workers.pool import Pool
from snugfit.workload import Workload

BATCH = 64
REPEATS = 3
CONFIGS = {"8b": LLAMA_8B, "70b": LLAMA_70B}
_SEQUENCES = "--task causal-lm --seq-len 2048 --json"
SEVERAL_GPUS = {
    "estimate_8b_on_8": "estimate hf:8b.json --batch-size 8 --gpus 8 --shard full --checkpoint all --device rtx-4090",
    "estimate_8b_on_4096": (
        "estimate hf:8b.json --batch-size 4096 --gpus 8 --nodes 512 --shard full --checkpoint all --device h100-80gb"
    ),
    "estimate_70b_on_64": (
        "estimate hf:70b.json --batch-size 64 --gpus 8 --nodes 8 --shard full --checkpoint all --device h100-80gb"
    ),
    "plan_8b_on_8": "plan hf:8b.json --batch-size 8 --gpus 8 --budget 23GiB --device rtx-4090",
    "plan_70b_on_64": (
        "plan hf:70b.json --batch-size 64 --precision bf16-mixed --gpus 8 --nodes 8 --budget 75GiB --device h100-80gb"
    ),
}
"""What is typed after `snugfit`."""


_BF16 = {"precision": "bf16-true", "init": "device"}
LLAMA_RECIPES = {
    "full_adamw_bf16": Recipe(precision="bf16-true"),
    "adamw8bit_step_in_backward": Recipe(**_BF16, optimizer="adamw8bit", step_in_backward=True, checkpoint="all"),
    "lora": Recipe(**_BF16, adapter="lora"),
    "qlora": Recipe(**_BF16, adapter="lora", quantize="nf4"),
}


def vit() -> torch.nn.Module:
    import torchvision

    return torchvision.models.vit_l_16(num_classes=10)


def loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
    return F.cross_entropy(output, batch[1])


@dataclasses.dataclass
class Times:
    """Wall and processor seconds of one run after another."""

    wall_seconds: list[float] = dataclasses.field(default_factory=list)
    processor_seconds: list[float] = dataclasses.field(default_factory=list)

    @contextlib.contextmanager
    def run(self, processor: Callable[[], float]) -> Iterator[None]:
        began, worked = time.perf_counter(), processor()
        yield
        self.wall_seconds.append(time.perf_counter() - began)
        self.processor_seconds.append(processor() - worked)


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def warm_times(pool: Pool) -> tuple[Times, snugfit.Estimate]:
    """Wall time of whole estimates: request, simulation, replays, card's fit."""
    batch = ((BATCH, 3, 224, 224), torch.float32), ((BATCH,), torch.int64)
    times = Times()
    snugfit.estimate(vit, batch, loss=loss, optimizer="adam", device="a100-80gb", pool=pool)
    for _ in range(REPEATS):
        with times.run(lambda: time.process_time() + pool.call(time.process_time)):
            found = snugfit.estimate(vit, batch, loss=loss, optimizer="adam", device="a100-80gb", pool=pool)
    return times, found


def mem_tracker_times() -> tuple[Times, int]:
    """The same two steps under MemTracker, as its documentation does it, model building left out."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools import MemTracker

    times = Times()
    with torch.device("meta"):  # its initialisation reads values, which fake tensors do not have
        model = vit()
    with FakeTensorMode():
        for module in model.modules():
            for name, weight in module._parameters.items():
                if weight is not None:
                    module._parameters[name] = torch.nn.Parameter(torch.empty(weight.shape))
        optimizer = torch.optim.Adam(model.parameters())
        images, labels = torch.empty(BATCH, 3, 224, 224), torch.empty(BATCH, dtype=torch.long)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with times.run(time.process_time), tracker:
            for number in range(2):
                F.cross_entropy(model(images), labels).backward()
                optimizer.step()
                optimizer.zero_grad()
                if number == 0:
                    tracker.reset_mod_stats()
        peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    return times, peak


def cold_times() -> Times:
    """The command as typed: two processes start, and torch and torchvision are loaded."""
    words = [sys.executable, "-m", "snugfit", "estimate", "torchvision:vit_l_16", "--optimizer", "adam"]
    words += ["--batch-size", str(BATCH), "--device", "a100-80gb", "--json"]
    times = Times()
    for _ in range(REPEATS):
        with times.run(children_seconds):
            subprocess.run(words, check=True, capture_output=True)
    return times


def llama(folder: Path, pool: Pool, recipe: Recipe) -> dict[str, Any]:
    """8 billion parameters by a recipe, in a worker that has loaded the libraries on a small config before."""
    workload = Workload(batch_size=1)
    (folder / "small.json").write_text(json.dumps({**LLAMA_8B, "num_hidden_layers": 2}))
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))

    def one(name: str) -> snugfit.Estimate:
        named = NamedModel(spec=f"hf:{folder / name}", seq_len=2048)
        return estimate_named(named, recipe=recipe, workload=workload, device="h100-80gb", pool=pool)

    one("small.json")
    times = Times()
    with times.run(lambda: time.process_time() + pool.call(time.process_time)):
        found = one("config.json")
    return {
        **dataclasses.asdict(times),
        "process_peak_rss_bytes": pool.call(peak_rss_bytes),
        "parameters": found.parameters,
        "total_bytes": found.total_bytes,
    }


def several_gpus(folder: Path, only: str) -> dict[str, Any]:
    """Each command as typed, with the time of all its processes and what it found."""
    for name, config in CONFIGS.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
    rows = {}
    for name, typed in SEVERAL_GPUS.items():
        if only not in name:
            continue
        times = Times()
        with times.run(children_seconds):
            words = [sys.executable, "-m", "snugfit", *typed.split(), *_SEQUENCES.split()]
            done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, check=True)
        found = json.loads(done.stdout)
        estimate = found.get("estimate", found)
        rows[name] = {
            "typed": f"snugfit {typed} {_SEQUENCES}",
            **{key: seconds for key, (seconds,) in dataclasses.asdict(times).items()},
            **{key: estimate[key] for key in ("total_bytes", "host_bytes", "step_seconds")},
            **({"recipe": found["recipe"], "simulated": found["simulated"]} if "simulated" in found else {}),
        }
        print(json.dumps({name: rows[name]}), flush=True)
    return rows


def replayed_events_per_second() -> float:
    """Events of a busy trace over the processor time of its fastest replay; 300 thousand on a quiet core."""
    build, living = TraceBuilder(), []
    for i in range(10_000):
        living.append(build.alloc((1 + i * 7919 % 997) * 50_000))
        if len(living) > 400:
            build.free(living.pop(i * 31 % 400))
    trace, seconds = build.build(), []
    for _ in range(REPEATS):
        began = time.process_time()
        replay(trace)
        seconds.append(time.process_time() - began)
    return len(trace) / min(seconds)


def peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", nargs="?", const="", metavar="WORD", help="the rows of several GPUs only")
    only = parser.parse_args().gpus
    with tempfile.TemporaryDirectory() as folder:
        rows = several_gpus(Path(folder), only or "")
    kept = json.loads((RESULTS / "estimate_speed.json").read_text())
    about = {"machine": machine(), "load_average": os.getloadavg()[0]}
    several = {**kept.get("several_gpus", {}), **{name: {**row, **about} for name, row in rows.items()}}
    if only is not None:
        kept["several_gpus"] = several
        (RESULTS / "estimate_speed.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        return kept
    cold = cold_times()
    pool = Pool()
    warm, found = warm_times(pool)
    pool.close()
    tracker, tracker_peak = mem_tracker_times()
    large = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, recipe in LLAMA_RECIPES.items():
            large[name] = llama(Path(folder), pool, recipe)
            pool.close()  # each in a worker of its own, whose memory is its own
    results = {
        "load_average": os.getloadavg()[0],
        "replayed_events_per_second": replayed_events_per_second(),
        "vit_l_16": {
            "warm": dataclasses.asdict(warm),
            "cold_command": dataclasses.asdict(cold),
            "mem_tracker": dataclasses.asdict(tracker),
            "times_faster_than_mem_tracker": min(tracker.processor_seconds) / min(warm.processor_seconds),
            "peak_allocated_bytes": found.peak_allocated_bytes,
            "mem_tracker_peak_bytes": tracker_peak,
        },
        **{f"llama_8b_{name}": found for name, found in large.items()},
        "several_gpus": several,
    }
    print(json.dumps(results, indent=1))
    write("estimate_speed", results)
    return results


if __name__ == "__main__":
    main()
