"""Predicted against measured: the peak tensor bytes of CPU runs, four models under every recipe that changes memory.

Each row trains for two steps with an evaluation between them, once for real under torch's memory events and once
simulated, by the very same `snugfit.prepare`. What a recipe keeps in the host pool is counted apart and compared too. Both
run on this machine, in this process and its worker, so the numbers belong to its vector instructions and threads
(`ONEDNN_MAX_CPU_ISA` and `OMP_NUM_THREADS` make it another machine; the result says which one it was).

    python -m benchmarks.cpu_truth        (writes benchmarks/results/cpu_truth.json)
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

import snugfit
from benchmarks.held_out import take_course
from snugfit.fake_device.personality import Personality
from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.processor import this_processor
from snugfit.recipe import Recipe
from snugfit.recording.trace import ALLOC, FREE, RESIZE, WORKSPACE, Trace
from snugfit.simulator.given_training import simulate_training
from snugfit.simulator.session import STEPS
from snugfit.workers.pool import Pool

TOLERANCE = 0.01
"""Largest share by which prediction and measurement may differ."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and what it is trained on."""

    build: Callable[[], torch.nn.Module]
    """Builds the model."""
    batch: Callable[[], Any]
    """Makes one batch."""
    loss: Callable[[Any, Any], torch.Tensor] | None
    """The loss; None where the model returns it."""
    attention: bool
    """Whether the model has attention, so that its kernels are a choice."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One combination of model and recipe."""

    model: str
    """Name of the model."""
    recipe: str
    """Name of the recipe."""
    predicted_bytes: int
    """Peak tensor bytes of the simulated run."""
    measured_bytes: int
    """Peak tensor bytes of the real run."""
    ratio: float
    """Predicted over measured."""
    predicted_host_bytes: int
    """Most bytes in the host pool of the simulated run."""
    measured_host_bytes: int
    """Most bytes in the host pool of the real run."""


def _images(count: int, side: int) -> Callable[[], Any]:
    return lambda: (torch.randn(count, 3, side, side), torch.zeros(count, dtype=torch.long))


def _tokens(count: int, length: int) -> Callable[[], Any]:
    def make() -> Any:
        mask = torch.ones(count, length, dtype=torch.long)
        mask[0, length // 2 :] = 0  # padding: transformers leaves out a mask whose values are all 1
        ids = torch.zeros(count, length, dtype=torch.long)
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.zeros(count, dtype=torch.long)}

    return make


def _loss(output: Any, batch: Any) -> torch.Tensor:
    return F.cross_entropy(output, batch[1])


def _resnet() -> torch.nn.Module:
    import torchvision

    return torchvision.models.resnet18(num_classes=10)


def _convnext() -> torch.nn.Module:
    import torchvision

    return torchvision.models.convnext_tiny(num_classes=10)


def _vit() -> torch.nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        image_size=32, patch_size=8, num_layers=3, num_heads=4, hidden_dim=64, mlp_dim=256, num_classes=10
    )


def _bert() -> torch.nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=256,
        vocab_size=1000,
        max_position_embeddings=64,
        num_labels=4,
    )
    return BertForSequenceClassification(config)


CASES = {
    "resnet18": Case(_resnet, _images(4, 64), _loss, False),
    "vit": Case(_vit, _images(4, 32), _loss, True),
    "convnext_tiny": Case(_convnext, _images(2, 64), _loss, False),
    "bert": Case(_bert, _tokens(4, 32), None, True),
}
RECIPES: dict[str, dict[str, Any]] = {
    "fp32 adamw": {},
    "sgd": {"optimizer": "sgd"},
    "adafactor": {"optimizer": "adafactor"},
    "foreach": {"optimizer_impl": "foreach"},
    "for-loop": {"optimizer_impl": "for-loop"},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "bf16-true": {"precision": "bf16-true"},
    "stochastic rounding": {"precision": "bf16-true", "stochastic_rounding": True},
    "microbatch": {"microbatch_size": 1},
    "microbatch, fp32 accumulation": {"precision": "bf16-true", "microbatch_size": 1, "accumulate_dtype": "fp32"},
    "checkpoint all": {"checkpoint": "all"},
    "checkpoint blocks:1": {"checkpoint": "blocks:1"},
    "checkpoint selective": {"checkpoint": "selective"},
    "offload activations": {"offload_activations": "all"},
    "offload checkpoints": {"checkpoint": "all", "offload_activations": "checkpoints"},
    "offload optimizer": {"offload_optimizer": True},
    "step in backward": {"step_in_backward": True},
    "inplace": {"inplace": True},
    "attention eager": {"attention": "eager"},
    "attention sdpa": {"attention": "sdpa"},
}


def measured(case: Case, recipe: Recipe) -> tuple[int, int]:
    """Trains for real.

    Args:
        case: The model.
        recipe: The recipe.

    Returns:
        Peak tensor bytes, and most bytes in the host pool.
    """
    warm_up()  # has collected garbage, too
    events = AllocatorEvents()
    events.start()
    trainer = snugfit.prepare(case.build(), recipe, loss=case.loss, device="cpu")
    take_course(trainer, case.batch, {"loss": case.loss}, steps=STEPS)
    events.stop()
    return events.peak_bytes, trainer.peak_host_bytes


def predicted(case: Case, recipe: Recipe, pool: Pool) -> tuple[int, int]:
    """Simulates the same run; arguments and result as `measured`.

    Args:
        case: The model.
        recipe: The recipe.
        pool: Workers that simulate.

    Returns:
        Peak tensor bytes, and most bytes in the host pool.
    """
    personality = Personality(kind="cpu", threads=torch.get_num_threads())
    arguments = {"loss": case.loss}
    recording = simulate_training(
        case.build, recipe, case.batch(), personality=personality, pool=pool, arguments=arguments
    )
    return _peaks(recording.trace)


def _peaks(trace: Trace) -> tuple[int, int]:
    now, peak = {"device": 0, "host": 0}, {"device": 0, "host": 0}
    size: dict[int, int] = {}
    for kind, subject, value in zip(trace.kinds, trace.subjects, trace.values, strict=True):
        if kind == WORKSPACE:
            peak["device"] = max(peak["device"], now["device"] + trace.workspaces[subject].nbytes)
        elif kind in (ALLOC, FREE, RESIZE):
            row = trace.storages[subject]
            new_bytes = row.nbytes if kind == ALLOC else 0 if kind == FREE else value
            now[row.place] += new_bytes - size.get(subject, 0)
            size[subject] = new_bytes
            peak[row.place] = max(peak[row.place], now[row.place])
    return peak["device"], peak["host"]


def compare(model: str, recipe: str, pool: Pool) -> Row:
    """Returns one combination, predicted and measured.

    Args:
        model: A key of `CASES`.
        recipe: A key of `RECIPES`.
        pool: Workers that simulate.
    """
    case, made = CASES[model], Recipe(**RECIPES[recipe])
    measured_bytes, measured_host_bytes = measured(case, made)
    predicted_bytes, predicted_host_bytes = predicted(case, made, pool)
    ratio = round(predicted_bytes / measured_bytes, 6)
    return Row(model, recipe, predicted_bytes, measured_bytes, ratio, predicted_host_bytes, measured_host_bytes)


def combinations() -> Iterator[tuple[str, str]]:
    """Yields every model with every recipe that can change its memory."""
    for model, case in CASES.items():
        for recipe in RECIPES:
            if case.attention or not recipe.startswith("attention"):
                yield model, recipe


def main() -> None:
    """Compares all combinations, prints them, the worst last, and writes the results."""
    from benchmarks.results_file import write

    warnings.simplefilter("ignore")
    pool = Pool()
    rows = []
    try:
        for model, recipe in combinations():
            row = compare(model, recipe, pool)
            rows.append(row)
            print(
                f"{row.model:14s} {row.recipe:30s} predicted {row.predicted_bytes:>11,}  measured"
                f" {row.measured_bytes:>11,}  {row.ratio - 1:+.3%}   host {row.predicted_host_bytes:,}"
                f" / {row.measured_host_bytes:,}",
                flush=True,
            )
    finally:
        pool.close()
    worst = max(rows, key=lambda row: abs(row.ratio - 1))
    host_equal = all(row.predicted_host_bytes == row.measured_host_bytes for row in rows)
    within = sum(abs(row.ratio - 1) <= TOLERANCE for row in rows)
    results = {
        "processor": this_processor().in_words(),
        "tolerance": TOLERANCE,
        "combinations": len(rows),
        "within_tolerance": within,
        "host_bytes_equal": host_equal,
        "worst": dataclasses.asdict(worst),
        "rows": [dataclasses.asdict(row) for row in rows],
    }
    path = write("cpu_truth", results)
    print(
        f"{within} of {len(rows)} within {TOLERANCE:.0%}; worst {worst.model}, {worst.recipe}: {worst.ratio - 1:+.3%}; "
        f"host bytes {'equal' if host_equal else 'NOT equal'} in all; {path}"
    )


if __name__ == "__main__":
    main()
