"""What each technique saves and costs on this machine: peak tensor bytes and step time with it and without it.

One model and batch for nearly all, so that rows can be compared: the transformer of `step_overhead.py` (convolutions for
`inplace`, a small Llama for `loss_impl`). Each row is the example that the technique declares: recipes that differ in it
alone. Peaks are counted from the allocator's events over building the trainer and three steps, above the weights of the
unprepared model; on a CPU run what a recipe moves to the host is counted apart. Times are the median of paired steps.
`benchmarks/results/techniques.json` feeds the technique pages.

    python -m benchmarks.techniques [--pairs 8] [--only NAMES]
"""

from __future__ import annotations

import argparse
import gc
import json
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import snugfit
from benchmarks.results_file import RESULTS, machine, name_for, write
from benchmarks.step_overhead import BATCH, make_batches, make_model, paired, peak_bytes
from snugfit import Recipe, SnugfitWarning
from snugfit.techniques import TECHNIQUES

EXAMPLES = {row.name: row.example for row in TECHNIQUES if not isinstance(row.example, str)}
"""Technique -> the recipe without it and the recipe with it."""
SEQ_LEN, WORDS = 64, 8192


class _ReLUNet(nn.Module):
    """Convolutions with norm and ReLU beside each other: the model that in-place activations are for."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
        for _ in range(4):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean((2, 3)))


def model_for(technique: str) -> nn.Module:
    torch.manual_seed(0)
    if technique == "loss_impl":
        from transformers import LlamaConfig, LlamaForCausalLM

        layers = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
        return LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, use_cache=False, **layers))
    return _ReLUNet() if technique == "inplace" else make_model()


def batches_for(technique: str, device: torch.device) -> list[Any]:
    if technique != "loss_impl":
        return make_batches(device, 4)
    generator = torch.Generator().manual_seed(1)
    tokens = [torch.randint(0, WORDS, (BATCH, SEQ_LEN), generator=generator).to(device) for _ in range(4)]
    return [{"input_ids": ids, "labels": ids} for ids in tokens]


def trainer_for(technique: str, model: nn.Module, recipe: Recipe, device: torch.device) -> Any:
    # A language model returns its loss; the others leave it to the caller.
    loss = None if technique == "loss_impl" else lambda output, batch: F.cross_entropy(output, batch[1])
    return snugfit.prepare(model, recipe, loss=loss, device=device, batch_size=BATCH)


def _peak(technique: str, recipe: Recipe, batch: Any, device: torch.device) -> int:
    gc.collect()  # garbage of the row before would be freed in the middle, and counted

    # The model is built inside: what a recipe frees of its weights counts only where their allocation was seen.
    def make() -> Any:
        return trainer_for(technique, model_for(technique).to(device), recipe, device).step

    weights = sum(weight.nbytes for weight in {*model_for(technique).parameters(), *model_for(technique).buffers()})
    return peak_bytes(make, batch, device) - weights


def measure(technique: str, pairs: int, device: torch.device) -> dict[str, Any]:
    """One row: peaks, host bytes and times without and with a technique."""
    recipes = [Recipe(**fields) for fields in EXAMPLES[technique]]
    batches = batches_for(technique, device)
    peaks, hosts, steps = [], [], []
    for recipe in recipes:
        peaks.append(_peak(technique, recipe, batches[0], device))
        gc.collect()
        trainer = trainer_for(technique, model_for(technique).to(device), recipe, device)
        for batch in batches[:2]:
            trainer.step(batch)
        hosts.append(trainer.peak_host_bytes)
        steps.append(trainer.step)
    times = paired(steps[0], steps[1], batches, pairs, device)
    return {
        "technique": technique,
        "model": type(model_for(technique)).__name__,
        "without": recipes[0].to_mapping(defaults=False),
        "with": recipes[1].to_mapping(defaults=False),
        "peak_tensor_bytes": peaks,
        "host_tensor_bytes": hosts,
        "step_seconds": [times["hand_step_seconds"], times["our_step_seconds"]],
        "time_ratio": times["ratio_median"],
    }


def _measured_here(name: str) -> list[dict[str, Any]]:
    """Rows that are there already, of this machine, these versions and this day."""
    path = RESULTS / f"{name}.json"
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    rows: list[dict[str, Any]] = results["rows"] if results.get("machine") == machine() else []
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=8, help="timed steps of each")
    parser.add_argument("--only", default=",".join(EXAMPLES), help="names of techniques, separated by commas")
    args = parser.parse_args()
    warnings.simplefilter("ignore", SnugfitWarning)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    names = args.only.split(",")
    rows = [row for row in _measured_here(name_for("techniques", device)) if row["technique"] not in names]
    for technique in names:
        row = measure(technique, args.pairs, device)
        rows.append(row)
        before, after = row["peak_tensor_bytes"]
        print(f"{technique:22} {before / 2**20:8.2f} -> {after / 2**20:8.2f} MiB   time x {row['time_ratio']:.3f}")
        write(name_for("techniques", device), {"batch_size": BATCH, "pairs": args.pairs, "rows": rows})


if __name__ == "__main__":
    main()
