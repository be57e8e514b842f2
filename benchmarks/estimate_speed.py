"""How long an estimate takes, beside torch's own MemTracker under fake tensors on the same model in the same run.

ViT-L/16 at 224 x 224, batch 64, fp32, Adam, warm (a worker that has loaded torch and seen the model once); the cold
command; and a Llama-shaped model of 8 billion parameters with full AdamW in bf16, with 8-bit state stepped in backward, with
LoRA and with QLoRA, each in a worker that has loaded the libraries, with the memory of its process. Bounds that the package
sets itself: 5 times faster than MemTracker, warm 1.5 s, cold 6 s, 8 billion parameters 10 s and 1.5 GB. Processor time
stands beside wall time, which depends on what else the machine does.

    python benchmarks/estimate_speed.py        (writes benchmarks/results/estimate_speed.json)
"""

from __future__ import annotations

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
from results_file import write
from snugfit.recipe import Recipe
from snugfit.simulator.estimate import estimate_named
from snugfit.simulator.request import NamedModel
from snugfit.workers.pool import Pool
from snugfit.workload import Workload

BATCH = 64
REPEATS = 3
LLAMA_8B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
"""The published shape of Llama 3 8B."""


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


def peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> dict[str, Any]:
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
        "vit_l_16": {
            "warm": dataclasses.asdict(warm),
            "cold_command": dataclasses.asdict(cold),
            "mem_tracker": dataclasses.asdict(tracker),
            "times_faster_than_mem_tracker": min(tracker.processor_seconds) / min(warm.processor_seconds),
            "peak_allocated_bytes": found.peak_allocated_bytes,
            "mem_tracker_peak_bytes": tracker_peak,
        },
        **{f"llama_8b_{name}": found for name, found in large.items()},
    }
    print(json.dumps(results, indent=1))
    write("estimate_speed", results)
    return results


if __name__ == "__main__":
    main()
