"""What `snugfit export --to deepspeed` writes, trained by DeepSpeed itself and by snugfit: the weights side by side.

    python -m benchmarks.deepspeed_export [--without-nvme]

Two processes on this CPU, connected by gloo, train the same small model on the same batches: once by DeepSpeed with the
exported config as it is, once by snugfit with the recipe. A row says how far a weight was moved by training at most, and
how far the two ends are apart at most, as a share of that. `instead` holds configs with something
else in place of what the export writes, with the same two numbers.

It needs an environment with DeepSpeed, a C++ compiler and ninja (its optimizer on the host is compiled at its first use,
minutes on a small machine), and libaio for the row on NVMe, which is left out with its reason otherwise.
Gloo carries everything: DeepSpeed's own kernels for the shared memory of one machine are another library to compile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import snugfit
from benchmarks.results_file import write
from snugfit.interop.deepspeed_config import deepspeed_export
from snugfit.interop.deepspeed_wanted import Wanted
from snugfit.recipe import Recipe
from snugfit.run import Run
from snugfit.workload import Workload

RANKS, BATCH, STEPS, WIDTH = 2, 16, 4, 64
EXACT, MIXED, TRUE = 5e-4, 5e-3, 0.5
"""Largest difference allowed, as a share of the largest change: where both round in fp32 (Adam divides by what is
nearly nothing); where both compute in bf16; and where weights are held in bf16, of which one rounding is as an update."""
FOUND = "found.json"
COMMON = {"microbatch_size": 4}
ADAMW = {"optimizer": "adamw", "lr": 1e-3, "clip_norm": 0.5}
SGD = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "clip_norm": 0.5}
WARM = {"lr_schedule": "linear", "warmup_steps": 2, "max_steps": STEPS}
COSINE = {"lr_schedule": "cosine", "max_steps": STEPS}

Case = tuple[dict[str, Any], dict[str, Any], dict[str, Any], float]
"""Fields of the recipe, training settings, what else is asked of the export, and the tolerance."""
CASES: dict[str, Case] = {
    "ZeRO 0": ({}, ADAMW, {}, EXACT),
    "ZeRO 1": ({}, ADAMW, {"stage": 1}, EXACT),
    "ZeRO 2": ({"shard": "gradients"}, ADAMW, {}, EXACT),
    "ZeRO 3": ({"shard": "full"}, ADAMW, {}, EXACT),
    "ZeRO 3, SGD, cosine": ({"shard": "full"}, {**SGD, **COSINE}, {}, EXACT),
    "ZeRO 2, Adam, warm-up, linear": ({"shard": "gradients"}, {**ADAMW, "optimizer": "adam", **WARM}, {}, EXACT),
    "ZeRO 0, warm-up": ({}, {**SGD, "warmup_steps": 3}, {}, EXACT),
    "ZeRO 3, autocast to bf16": ({"shard": "full", "precision": "bf16-mixed"}, ADAMW, {}, MIXED),
    "ZeRO 2, weights and state in bf16": ({"shard": "gradients", "precision": "bf16-true"}, ADAMW, {}, TRUE),
    "ZeRO 1, SGD on the host": ({"offload_optimizer": True}, SGD, {}, EXACT),
    "ZeRO 1, state on the host": ({"offload_optimizer": True}, ADAMW, {}, EXACT),
    "ZeRO 2, state on the host": ({"shard": "gradients", "offload_optimizer": True}, ADAMW, {}, EXACT),
    "ZeRO 3, all on the host": ({"shard": "full", "offload_parameters": "all"}, ADAMW, {}, EXACT),
    "ZeRO 0, autocast to fp16": ({"precision": "16-mixed"}, ADAMW, {}, MIXED),
    "ZeRO 3, all on NVMe": ({"shard": "full", "offload_parameters": "all"}, ADAMW, {"offload": "nvme"}, EXACT),
}
_AUTOCAST_FP16 = {"torch_autocast": {"enabled": True, "dtype": "float16", "lower_precision_safe_modules": []}}
INSTEAD: dict[str, tuple[Case, dict[str, Any]]] = {
    "ZeRO 2, autocast to fp16": (({"shard": "gradients", "precision": "16-mixed"}, ADAMW, {}, MIXED), _AUTOCAST_FP16),
    "ZeRO 3, zero_hpz_partition_size 2": (
        ({"shard": "full"}, ADAMW, {}, EXACT),
        {"zero_optimization": {"stage": 3, "stage3_max_reuse_distance": 0, "zero_hpz_partition_size": 2}},
    ),
}
"""Name -> a case, and what is put into its config in place of what the export writes."""


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(self.norm(x))


def build() -> nn.Module:
    """The model, always with the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, WIDTH), Block(), Block(), nn.Linear(WIDTH, 5))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of a run."""
    drawn = torch.Generator().manual_seed(1)
    return [
        (torch.randn(BATCH, 12, generator=drawn), torch.randint(5, (BATCH,), generator=drawn)) for _ in range(STEPS)
    ]


def share(batch: tuple[torch.Tensor, torch.Tensor], rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A process's share of a batch."""
    each = BATCH // RANKS
    inputs, labels = batch
    return inputs[rank * each : (rank + 1) * each], labels[rank * each : (rank + 1) * each]


def loss_of(output: torch.Tensor, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The loss."""
    return nn.functional.cross_entropy(output.float(), batch[1])


def by_deepspeed(config: dict[str, Any], rank: int) -> tuple[dict[str, torch.Tensor], str]:
    """Trains with a config; returns the weights, and the class that updated them."""
    import deepspeed

    model = build()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    size, pieces = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    dtype = torch.bfloat16 if config.get("bf16", {}).get("enabled") else torch.float32
    for batch in batches():
        inputs, labels = share(batch, rank)
        for piece in range(pieces):
            cut = slice(piece * size, (piece + 1) * size)
            engine.backward(loss_of(engine(inputs[cut].to(dtype)), (inputs[cut], labels[cut])))
            engine.step()
    weights = list(engine.module.parameters())
    gathered = engine.zero_optimization_stage() == 3
    with deepspeed.zero.GatheredParameters(weights) if gathered else contextlib.nullcontext():
        found = {name: weight.detach().float().clone() for name, weight in engine.module.named_parameters()}
    updater = type(engine.basic_optimizer).__name__
    engine.destroy()
    return found, updater


def by_snugfit(recipe: Recipe, settings: Mapping[str, Any], rank: int) -> dict[str, torch.Tensor]:
    """Trains by a recipe; returns the weights."""
    trainer = snugfit.prepare(build(), recipe, loss=loss_of, device="cpu", **settings)
    for batch in batches():
        trainer.step(share(batch, rank))
    trainer.finish()
    named = trainer.model.named_parameters()
    return {name: getattr(one, "full_tensor", lambda one=one: one)().detach().float().clone() for name, one in named}


def compared(
    name: str, case: Case, changed: dict[str, Any], folder: Path, rank: int, without_nvme: bool
) -> dict[str, Any]:
    """Trains both ways; returns the row."""
    fields, settings, asked, tolerance = case
    recipe = Recipe(**COMMON, **fields)
    run = Run(recipe, Workload(batch_size=BATCH, gpus=RANKS, **settings))
    if asked.get("offload") == "nvme":
        if without_nvme:
            return {"case": name, "left_out": "DeepSpeed's reader of drives was not compiled here"}
        from deepspeed.ops.op_builder import AsyncIOBuilder

        if not AsyncIOBuilder().is_compatible():
            return {"case": name, "left_out": "DeepSpeed finds no libaio to compile its reader of drives with"}
        asked = {**asked, "nvme_path": str(folder)}
    config = {**json.loads(deepspeed_export(run, Wanted(**asked)).text()), **changed}
    for instead in ("fp16", "torch_autocast") if "torch_autocast" in changed else ():
        if instead not in changed:
            config.pop(instead, None)
    theirs, updater = by_deepspeed(config, rank)
    ours = by_snugfit(recipe, settings, rank)
    start = dict(build().named_parameters())
    moved = max(float((ours[key] - start[key]).abs().max()) for key in ours)
    apart = max(float((ours[key] - theirs[key]).abs().max()) for key in ours)
    ratio = apart / moved
    return {
        "case": name, "updated_by": updater, "largest_change": moved, "largest_difference": apart,
        "difference_of_change": ratio, "tolerance": tolerance, "within": ratio <= tolerance,
    }  # fmt: skip


def work(rank: int, folder: Path, without_nvme: bool) -> None:
    """One of the two processes."""
    import deepspeed
    import deepspeed.ops

    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", verbose=False)
    jobs: list[tuple[str, str, Case, dict[str, Any]]] = [("rows", name, case, {}) for name, case in CASES.items()]
    jobs += [("instead", name, *rest) for name, rest in INSTEAD.items()]
    # DeepSpeed remembers autocast to fp16 for the rest of the process, and would scale what comes after.
    jobs.sort(key=lambda job: job[2][0].get("precision") == "16-mixed")
    found: dict[str, list[dict[str, Any]]] = {"rows": [], "instead": []}
    for part, name, case, changed in jobs:
        row = compared(name, case, changed, folder, rank, without_nvme)
        found[part].append(row)
        if rank == 0:
            print(row, flush=True)
    if rank == 0:
        document = {"deepspeed": deepspeed.__version__, "processes": RANKS, "steps": STEPS, **found}
        (folder / FOUND).write_text(json.dumps(document), encoding="utf-8")


def main() -> None:
    """Starts both processes and writes `results/deepspeed_export.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--without-nvme", action="store_true", help="do not compile what reads and writes drives")
    args = parser.parse_args()
    if args.folder is not None:
        work(int(os.environ["RANK"]), args.folder, args.without_nvme)
        return
    with tempfile.TemporaryDirectory() as name:
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        variables = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        line = [sys.executable, *start, "-m", "benchmarks.deepspeed_export", "--folder", name]
        line += ["--without-nvme"] if args.without_nvme else []
        subprocess.run(line, env=variables, check=True)
        document = json.loads((Path(name) / FOUND).read_text(encoding="utf-8"))
    path = write("deepspeed_export", document)
    wrong = [row["case"] for row in document["rows"] if not row.get("within", True)]
    tried = [row for row in document["rows"] if "within" in row]
    print(f"{path}: {len(tried) - len(wrong)} of {len(tried)} rows within their tolerance {wrong or ''}")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
