"""Predicted against measured: the peak tensor bytes of compiled training on CPU, four models, by backend and recipe.

Each row trains for two steps with an evaluation between them, once for real under torch's memory events, compiled by the
backend (inductor needs a C++ compiler), and once simulated, where torch compiles the same step for fake tensors. What the
eager step takes is predicted beside it: that is what was said of compiled recipes before they were compiled here, too.

    python -m benchmarks.compiled                  (writes benchmarks/results/compiled.json; half an hour, as compilers take)
    python -m benchmarks.compiled vit gpt2         (only these models; those of others stay as they are in that file,
                                                    which then says that it was assembled)
"""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.cpu_truth import Case, measured, predicted
from benchmarks.results_file import RESULTS, write
from snugfit.processor import this_processor
from snugfit.recipe import Recipe
from snugfit.workers.pool import Pool

TOLERANCE = 0.05
"""Largest share by which prediction and measurement may differ."""
WORDS = 500


@dataclasses.dataclass(frozen=True)
class Row:
    """One combination of model, batch and recipe."""

    model: str
    """Name of the model."""
    samples: int
    """Samples in a batch."""
    recipe: dict[str, Any]
    """Fields of the recipe that are not as they are by default."""
    predicted_bytes: int
    """Peak tensor bytes of the simulated run."""
    measured_bytes: int
    """Peak tensor bytes of the real run."""
    ratio: float
    """Predicted over measured."""
    eager_bytes: int
    """Predicted peak tensor bytes of the same recipe without a compiler."""


def _vit(samples: int) -> Case:
    from torchvision.models.vision_transformer import VisionTransformer

    def build() -> nn.Module:
        return VisionTransformer(
            image_size=32, patch_size=4, num_layers=2, num_heads=2, hidden_dim=64, mlp_dim=256, num_classes=10
        )

    return Case(build, _images(samples), _loss, True)


class _Residual(nn.Module):
    """Two convolutions with batch norm, and what goes around them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.around = nn.Conv2d(inputs, outputs, 1, stride=2, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(inner)) + self.around(x))


def _cnn(samples: int) -> Case:
    def build() -> nn.Module:
        blocks = (_Residual(3, 32), _Residual(32, 64), _Residual(64, 64))
        return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    return Case(build, _images(samples), _loss, False)


def _gpt2(samples: int) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=64, n_layer=2, n_head=2, n_positions=64, vocab_size=WORDS, bos_token_id=0, eos_token_id=0
    )
    return Case(lambda: GPT2LMHeadModel(config), _tokens(samples, per_token=True), None, True)


def _bert(samples: int) -> Case:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256, vocab_size=WORDS,
        max_position_embeddings=64, num_labels=4,
    )  # fmt: skip
    return Case(lambda: BertForSequenceClassification(config), _tokens(samples, per_token=False), None, True)


def _images(samples: int) -> Callable[[], Any]:
    return lambda: (torch.randn(samples, 3, 32, 32), torch.zeros(samples, dtype=torch.long))


def _tokens(samples: int, *, per_token: bool) -> Callable[[], Any]:
    def make() -> Any:
        ids = torch.zeros(samples, 64, dtype=torch.long)
        return {"input_ids": ids, "labels": ids.clone() if per_token else torch.zeros(samples, dtype=torch.long)}

    return make


def _loss(output: Any, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(output, batch[1])


MODELS = {"vit": _vit, "cnn": _cnn, "gpt2": _gpt2, "bert": _bert}
_PARTITIONED, _INDUCTOR = {"compile": "aot_eager_decomp_partition"}, {"compile": "inductor"}
EVERYWHERE: tuple[tuple[int, dict[str, Any]], ...] = (
    (16, _PARTITIONED),
    (16, {**_PARTITIONED, "compile_memory_budget": 0.5}),
    (16, _INDUCTOR),
    (16, {**_INDUCTOR, "compile_memory_budget": 0.0}),
    (16, {**_INDUCTOR, "precision": "bf16-mixed"}),
)
"""Samples and recipes that every model is trained with."""
SOMEWHERE: dict[str, tuple[tuple[int, dict[str, Any]], ...]] = {
    "vit": (
        (16, {**_PARTITIONED, "compile_memory_budget": 1.0}),
        (16, {**_PARTITIONED, "compile_memory_budget": 0.0}),
        (16, {**_PARTITIONED, "checkpoint": "all"}),
        (64, {**_INDUCTOR, "microbatch_size": 16}),
        (64, {**_INDUCTOR, "compile_memory_budget": 0.5}),
    ),
    "cnn": ((64, _INDUCTOR), (64, {**_PARTITIONED, "microbatch_size": 16, "precision": "bf16-true"})),
    "gpt2": ((16, {**_INDUCTOR, "checkpoint": "all"}), (16, {**_INDUCTOR, "compile_memory_budget": 0.5})),
    "bert": ((64, {**_INDUCTOR, "microbatch_size": 16, "precision": "bf16-true"}), (16, {"compile": "aot_eager"})),
}
"""Samples and recipes of one model each."""


def combinations(models: list[str]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yields every combination of some models."""
    for model in models:
        for samples, recipe in (*EVERYWHERE, *SOMEWHERE[model]):
            yield model, samples, recipe


def compare(model: str, samples: int, fields: dict[str, Any], pool: Pool) -> Row:
    """Returns one combination, predicted and measured.

    Args:
        model: A key of `MODELS`.
        samples: Samples in a batch.
        fields: The recipe.
        pool: Workers that simulate.
    """
    case, recipe = MODELS[model](samples), Recipe(**fields)
    predicted_bytes, _ = predicted(case, recipe, pool)
    eager_bytes, _ = predicted(case, recipe.replace(compile="none", compile_memory_budget=None), pool)
    torch._dynamo.reset()
    measured_bytes, _ = measured(case, recipe)
    ratio = round(predicted_bytes / measured_bytes, 6)
    return Row(model, samples, fields, predicted_bytes, measured_bytes, ratio, eager_bytes)


def main() -> None:
    """Compares all combinations and prints them; each is written at once, in the place of the one that was there."""
    warnings.simplefilter("ignore")
    models = sys.argv[1:]
    rows = {(row["model"], row["samples"], str(row["recipe"])): row for row in (_written() if models else [])}
    pool = Pool()
    try:
        for combination in combinations(models or list(MODELS)):
            row = compare(*combination, pool)
            rows[row.model, row.samples, str(row.recipe)] = dataclasses.asdict(row)
            _write([rows[key] for key in _in_order() if key in rows], assembled=bool(models))
            print(
                f"{row.model:5s} {row.samples:3d} {' '.join(map(str, row.recipe.values())):40s} predicted "
                f"{row.predicted_bytes:>11,}  measured {row.measured_bytes:>11,}  {row.ratio - 1:+.3%}   eager "
                f"{row.eager_bytes / row.measured_bytes - 1:+.1%}",
                flush=True,
            )
    finally:
        pool.close()


def _in_order() -> list[tuple[str, int, str]]:
    return [(model, samples, str(recipe)) for model, samples, recipe in combinations(list(MODELS))]


def _write(rows: list[dict[str, Any]], *, assembled: bool) -> None:
    within = sum(abs(row["ratio"] - 1) <= TOLERANCE for row in rows)
    results = {
        "processor": this_processor().in_words(),
        "tolerance": TOLERANCE,
        "combinations": len(rows),
        "within_tolerance": within,
        "assembled": assembled,
        "worst": max(rows, key=lambda row: abs(row["ratio"] - 1)),
        "rows": rows,
    }
    write("compiled", results)


def _written() -> list[dict[str, Any]]:
    """The rows of the last run."""
    path = RESULTS / "compiled.json"
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []


if __name__ == "__main__":
    main()
