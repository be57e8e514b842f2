"""Several processes that share a batch, each one's measured peak beside the predicted one.

    python -m benchmarks.ranks [--only WORDS]

Processes on this machine's CPU, over gloo, take steps by real training; tensors are counted by the allocator's events.
Each process waits for gloo's threads as runs do (`private_torch/gloo.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import multiprocessing
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

import snugfit
from benchmarks.results_file import RESULTS, write
from snugfit.measure.meter import meter_for
from snugfit.private_torch.gloo import letting_go
from snugfit.recipe import Recipe
from snugfit.techniques.batch_share import share_of
from snugfit.techniques.batches import cut, map_tensors
from snugfit.training.course import Course
from snugfit.training.evaluation import task_of

SAMPLES, STEPS = 16, 4
SECONDS = 300
"""After which a process that does not answer is given up."""


def _vit() -> torch.nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(
        image_size=64, patch_size=8, num_layers=6, num_heads=4, hidden_dim=192, mlp_dim=768, num_classes=10
    )


def _cnn() -> torch.nn.Module:
    from torchvision.models import resnet18

    return resnet18(num_classes=10)


def _gpt() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 4, "n_embd": 192, "n_head": 4, "vocab_size": 5003, "n_positions": 128}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))


def _llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": 1009}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=6, num_key_value_heads=2))


def _images(device: str) -> Any:
    return torch.zeros(SAMPLES, 3, 64, 64, device=device), torch.zeros(SAMPLES, dtype=torch.long, device=device)


def _tokens(device: str) -> Any:
    tokens = torch.zeros(SAMPLES, 96, dtype=torch.long, device=device)
    return {"input_ids": tokens, "labels": tokens.clone()}


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """A model with its batch and its loss."""

    build: Callable[[], torch.nn.Module]
    """Builds the model."""
    batch: Callable[[str], Any]
    """Makes the whole batch on a device."""
    loss: Any
    """As for `snugfit.prepare`."""


SUBJECTS = {
    "vit": Subject(_vit, _images, torch.nn.functional.cross_entropy),
    "cnn": Subject(_cnn, _images, torch.nn.functional.cross_entropy),
    "gpt": Subject(_gpt, _tokens, None),
    "llama": Subject(_llama, _tokens, None),
}
RECIPES: Mapping[str, dict[str, Any]] = {
    "replicate": {},
    "gradients": {"shard": "gradients"},
    "full": {"shard": "full"},
    "full, checkpoint": {"shard": "full", "checkpoint": "all"},
    "full, microbatches": {"shard": "full", "microbatch_size": 2},
    "microbatches, reduced once": {"microbatch_size": 2, "reduce_gradients": "batch"},
}
FOR_FOUR: Mapping[str, dict[str, Any]] = {
    "hybrid:2": {"shard": "hybrid:2"},
    "full, step in backward": {"shard": "full", "step_in_backward": True},
    "full, host": {"shard": "full", "offload_parameters": "all"},
    "full, bf16-mixed": {"shard": "full", "precision": "bf16-mixed"},
}
CUT: Mapping[str, dict[str, Any]] = {
    "tensor_parallel:2": {"tensor_parallel": 2},
    "tensor_parallel:2, checkpoint": {"tensor_parallel": 2, "checkpoint": "all"},
}
CUT_BY_FOUR: Mapping[str, dict[str, Any]] = {
    "tensor_parallel:2, full": {"tensor_parallel": 2, "shard": "full"},
    "tensor_parallel:2, full, microbatches": {"tensor_parallel": 2, "shard": "full", "microbatch_size": 2},
}

CUT_BY_EIGHT: Mapping[str, dict[str, Any]] = {
    "tensor_parallel:2, hybrid:2": {"tensor_parallel": 2, "shard": "hybrid:2"},
}


def rows() -> Iterator[tuple[int, str, str, dict[str, Any]]]:
    """Yields number of processes, subject, name of the recipe and its fields."""
    for ranks, recipes, layers in ((2, RECIPES, CUT), (4, {**RECIPES, **FOR_FOUR}, {**CUT, **CUT_BY_FOUR})):
        for subject in SUBJECTS:
            for name, fields in (layers if subject == "llama" else recipes).items():
                yield ranks, subject, name, fields
            if subject == "vit":  # whose attention stays whole
                yield ranks, subject, *next(iter(layers.items()))
    for name, fields in CUT_BY_EIGHT.items():
        yield 8, "llama", name, fields


# -- a process


def measured(rank: int, ranks: int, subject: Subject, fields: Mapping[str, Any]) -> dict[str, int]:
    """Trains this process's share and returns what it held at most: `peak_tensor_bytes`, `host_tensor_bytes`."""
    meter = meter_for("cpu", window_steps=STEPS)
    meter.start()
    trainer = snugfit.prepare(
        subject.build, Recipe(**fields), loss=subject.loss, device="cpu", batch_size=SAMPLES, coupled_samples=False
    )
    meter.built()
    degree = int(fields.get("tensor_parallel", 1))  # so many take the same samples
    start, end = share_of(SAMPLES, ranks // degree, rank // degree)

    def batches() -> Iterator[Any]:
        for _ in range(STEPS):
            yield map_tensors(cut(subject.batch("cpu"), start, end - start, SAMPLES), torch.clone)

    Course(trainer, task_of(subject.loss), meter).train(batches())
    trainer.finish()
    found = meter.result(trainer.peak_host_bytes)
    return {name: int(found[name] or 0) for name in ("peak_tensor_bytes", "host_tensor_bytes")}


def _serve(rank: int, ranks: int, meeting: str, ends: Connection) -> None:
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=SECONDS),
    )
    with letting_go():
        while (task := ends.recv()) is not None:
            subject, fields = task
            try:
                ends.send(measured(rank, ranks, SUBJECTS[subject], fields))
            except Exception:
                ends.send({"error": traceback.format_exc()})
                return
    dist.destroy_process_group()


class Processes:
    """Processes that measure one configuration after the other."""

    def __init__(self, ranks: int) -> None:
        """Starts them."""
        self.ranks = ranks
        self._folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        self._ends = []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            meeting = f"{self._folder.name}/meeting"
            context.Process(target=_serve, args=(rank, ranks, meeting, theirs), daemon=True).start()
            self._ends.append(ours)

    def measure(self, subject: str, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Returns what each process held at most."""
        for ends in self._ends:
            ends.send((subject, dict(fields)))
        found: list[dict[str, Any]] = [
            ends.recv() if ends.poll(SECONDS) else {"error": "no answer"} for ends in self._ends
        ]
        errors = [one["error"] for one in found if "error" in one]
        if errors:
            raise SystemExit(f"{subject} by {dict(fields)} on {self.ranks} processes:\n{errors[0]}")
        return found

    def close(self) -> None:
        """Ends them."""
        for ends in self._ends:
            ends.send(None)
        self._folder.cleanup()


# -- both


def predicted(ranks: int, subject: Subject, fields: Mapping[str, Any]) -> list[int]:
    """Returns the predicted peak of each process."""
    estimate = snugfit.estimate(
        subject.build,
        subject.batch("meta"),
        loss=subject.loss,
        recipe=Recipe(**fields),
        device="cpu",
        gpus=ranks,
        batch_size=SAMPLES,
        coupled_samples=False,
        evaluate=False,
    )
    found = {}
    for row in estimate.ranks:
        for part in row.ranks.split(", "):
            first, _, last = part.partition("-")
            found.update(dict.fromkeys(range(int(first), int(last or first) + 1), row.peak_allocated_bytes))
    return [found[number] for number in range(ranks)]


def _known() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RESULTS / "ranks.json").read_text(encoding="utf-8"))["rows"]
    return found


def _write(found: Sequence[Mapping[str, Any]]) -> None:
    order = [row[:3] for row in rows()]
    found = sorted(found, key=lambda row: order.index((row["ranks"], row["model"], row["name"])))
    exact = sum(row["measured_bytes"] == row["predicted_bytes"] for row in found)
    close = sum(abs(row["worst"] - 1) <= 0.02 for row in found)
    write("ranks", {"rows": found, "exact": exact, "within_2_percent": close})


def main() -> None:
    """Measures and predicts every configuration, and writes `results/ranks.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a word that the row's name has")
    parser.add_argument("--missing", action="store_true", help="only rows that the results do not have yet; adds them")
    arguments = parser.parse_args()
    only, known = arguments.only, _known() if arguments.missing else []
    there = {(row["ranks"], row["model"], row["name"]) for row in known}
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    processes: Processes | None = None
    for ranks, subject, name, fields in rows():
        if (only and only not in f"{ranks} {subject} {name}") or (ranks, subject, name) in there:
            continue
        if processes is None or processes.ranks != ranks:
            if processes is not None:
                processes.close()
            processes = Processes(ranks)
        truth = processes.measure(subject, fields)
        guess = predicted(ranks, SUBJECTS[subject], fields)
        ratios = [bytes_ / one["peak_tensor_bytes"] for bytes_, one in zip(guess, truth, strict=True)]
        found.append(
            {
                "ranks": ranks,
                "model": subject,
                "name": name,
                "recipe": dict(fields),
                "measured_bytes": [one["peak_tensor_bytes"] for one in truth],
                "predicted_bytes": guess,
                "worst": round(max(ratios, key=lambda ratio: abs(ratio - 1)), 5),
            }
        )
        print(f"{ranks} x {subject}, {name}: {found[-1]['worst']:.4f}", flush=True)
        if arguments.missing:
            _write([*known, *found])
    if processes is not None:
        processes.close()
    if not only:
        _write([*known, *found])


if __name__ == "__main__":
    main()
