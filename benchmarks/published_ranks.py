"""Peaks of training on several GPUs that others measured, against what is predicted for one of the ranks.

    python -m benchmarks.published_ranks TRUTH [--code CODE] [--again]      (writes results/published_ranks.json)

The rows are those of `more_memory.jsonl.gz` of more than one GPU. Predicted are those whose configuration is complete:
model, samples and tokens of a rank, precision, ranks, sharding, checkpointing and optimizer. All others are listed with the
reason (`NOT_PREDICTED`); no row is left out in silence. A rank is simulated by torch's own `fully_shard`, as for a user.

- **torchtitan's Llama 3 8B and Qwen3 8B** (rows of torchao and torchtitan). torchtitan collects weights in bfloat16 and
  keeps them in float32 (`MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32)`), does not let go of the last
  block's weights between forward and backward, holds embedding and head in the outermost unit, and its own RMS norm and
  rotation are written in float32. That is set here as its code of that time had it; snugfit's own recipe collects in the
  parameters' type. Its figure is what is reserved at most, with expandable segments.
- **DDP by hand** of Stanford's course CS336: gradients are summed one by one where they are. Compared is the most that was
  allocated up to the first update and in it. CODE is as in `real_sequences.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gzip
import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.real_sequences import LARGE, VOCABULARY
from benchmarks.results_file import RESULTS, write
from snugfit.attributes import replaced
from snugfit.fake_device.personality import Personality
from snugfit.recipe import Recipe
from snugfit.recording.allocator import AllocatorConfig
from snugfit.recording.recording import Recording
from snugfit.recording.replay import Player
from snugfit.recording.trace import ALLOC, Trace
from snugfit.simulator.given_training import record_given
from snugfit.simulator.own_step import simulate_step
from snugfit.units import GIB
from snugfit.workers.pool import Pool

NAME = "published_ranks"
TOLERANCE = 0.10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """A Llama-like transformer."""

    width: int = 4096
    layers: int = 32
    heads: int = 32
    groups: int = 8
    inner: int = 14336
    words: int = 128256
    norms_of_heads: bool = False
    """Whether queries and keys are normalised head by head (Qwen3)."""


LLAMA, QWEN = Sizes(), Sizes(layers=36, inner=12288, words=151936, norms_of_heads=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """One published run that is predicted."""

    id: str
    """As in the file."""
    sizes: Sizes
    """The model."""
    samples: int
    """Samples of a rank."""
    tokens: int
    """Tokens of a sample."""
    ranks: int
    """GPUs, all in one machine."""
    recipe: dict[str, Any]
    """Fields of the recipe beside sharding."""
    capability: tuple[int, int] = (9, 0)
    """Of the card."""


_TITAN = (
    Published(id="ao_nocompile_none_bf16eager", sizes=LLAMA, samples=1, tokens=4096, ranks=8, recipe={}),
    Published(
        id="ao_nocompile_selective_bf16eager", sizes=LLAMA, samples=1, tokens=4096, ranks=8,
        recipe={"checkpoint": "every:2"},
    ),
)  # fmt: skip

NOT_PREDICTED: tuple[tuple[Callable[[dict[str, Any]], bool], str], ...] = (
    (
        lambda row: row["source"] == "KellerJordan/modded-nanogpt",
        "compiled with kernels of its own (float8 products, flash attention 3, Triton), windows that grow during the run",
    ),
    (
        lambda row: row["source"] == "facebookresearch/detectron2",
        "images of varying size, of which the largest decides; detectron2's own models",
    ),
    (lambda row: "CP " in str(row.get("parallel")), "context parallelism is not run here"),
    (lambda row: "PP " in str(row.get("parallel")), "pipeline parallelism is not run here"),
    (lambda row: "EP " in str(row.get("parallel")), "expert parallelism is not run here"),
    (lambda row: "TP " in str(row.get("parallel")), "tensor parallel with float8 products, which no recipe has"),
    (
        lambda row: any(word in str(row["precision"]).lower() for word in ("float8", "fp8", "fp4")),
        "products in 8 or 4 bits of torchao or torchtitan, which no recipe has",
    ),
    (lambda row: row["source"] == "deepspeedai/DeepSpeed", "DeepSpeed's engine; model or lengths are not printed"),
    (
        lambda row: row["source"] == "meta-llama/llama-cookbook",
        "the first FSDP; samples and their lengths are a script's defaults and vary",
    ),
    (lambda row: row["source"] == "facebookresearch/fairscale", "fairscale's own FSDP; precision is not printed"),
    (lambda row: bool(row.get("compile")), "compiled block by block with torchtitan's own choice of what is saved"),
    (lambda row: "sharded over" in str(row.get("optimizer")), "an optimizer sharded by hand, with buffers of its own"),
)
"""Rows that are not predicted, by the first reason that holds."""


# -- torchtitan's model, as it was in January 2025


class _Norm(nn.Module):
    """torchtitan's RMS norm: in float32, operator by operator."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def _rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles).flatten(3).type_as(x)


class _Attention(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head = 128
        self.repeats = sizes.heads // sizes.groups
        self.wq = nn.Linear(sizes.width, sizes.heads * self.head, bias=False)
        self.wk = nn.Linear(sizes.width, sizes.groups * self.head, bias=False)
        self.wv = nn.Linear(sizes.width, sizes.groups * self.head, bias=False)
        self.wo = nn.Linear(sizes.heads * self.head, sizes.width, bias=False)
        self.norms = nn.ModuleList(_Norm(self.head) for _ in range(2 * sizes.norms_of_heads))

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        samples, tokens, _ = x.shape
        q, k, v = (part(x).view(samples, tokens, -1, self.head) for part in (self.wq, self.wk, self.wv))
        if self.norms:
            q, k = self.norms[0](q), self.norms[1](k)
        q, k = _rotated(q, angles), _rotated(k, angles)
        k, v = (self._repeated(part) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.wo(mixed.transpose(1, 2).contiguous().view(samples, tokens, -1))

    def _repeated(self, x: torch.Tensor) -> torch.Tensor:
        samples, tokens, groups, head = x.shape
        wide = x[:, :, :, None, :].expand(samples, tokens, groups, self.repeats, head)
        return wide.reshape(samples, tokens, groups * self.repeats, head)


class _Inner(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(sizes.width, sizes.inner, bias=False) for _ in range(2))
        self.w2 = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class _Block(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention, self.inner = _Attention(sizes), _Inner(sizes)
        self.before, self.between = _Norm(sizes.width), _Norm(sizes.width)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x), angles)
        return x + self.inner(self.between(x))


class Titan(nn.Module):
    """torchtitan's transformer."""

    def __init__(self, sizes: Sizes, tokens: int) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.words, sizes.width)
        self.register_buffer("angles", torch.ones(tokens, 64, dtype=torch.complex64), persistent=False)
        self.layers = nn.ModuleList(_Block(sizes) for _ in range(sizes.layers))
        self.norm, self.head = _Norm(sizes.width), nn.Linear(sizes.width, sizes.words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        angles = self.angles[: ids.shape[1], None, :]
        for layer in self.layers:
            x = layer(x, angles)
        return self.head(self.norm(x))


def _loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1).float(), batch[1].flatten())


def _as_titan(run: Published) -> Recording:
    """Records a rank as torchtitan shares its model out; in a worker."""
    from snugfit.techniques.shard import apply

    collect = functools.partial(apply.MixedPrecisionPolicy, param_dtype=torch.bfloat16)
    share, found = apply.fully_shard, apply.units
    blocks: list[nn.Module] = []

    def shard(unit: nn.Module, *, reshard_after_forward: Any, **policies: Any) -> Any:
        return share(unit, reshard_after_forward=reshard_after_forward and unit is not blocks[-1], **policies)

    def units(model: nn.Module, unit: str) -> list[nn.Module]:
        blocks[:] = found(model, unit)
        return blocks

    ids = torch.zeros(run.samples * run.ranks, run.tokens, dtype=torch.long, device="meta")
    recipe = Recipe(shard="full", init="meta", reduce_dtype="fp32", **run.recipe)
    settings = {"loss": _loss, "optimizer": "adamw", "gpus": run.ranks, "clip_norm": 1.0, "evaluate": False}
    with replaced([(apply, "MixedPrecisionPolicy", collect), (apply, "fully_shard", shard), (apply, "units", units)]):
        return record_given(
            functools.partial(Titan, run.sizes, run.tokens), (ids, ids.clone()), settings, recipe,
            Personality(capability=run.capability), evaluate=False,
        )  # fmt: skip


def reserved_bytes(trace: Trace, *, expandable: bool) -> int:
    """Returns the most that is reserved."""
    player = Player(trace, AllocatorConfig(expandable_segments=expandable))
    player.play()
    return player.allocator.peak_reserved_bytes


def predicted(run: Published, pool: Pool) -> int:
    """Returns what is reserved at most on a rank of a run of torchtitan."""
    return reserved_bytes(pool.call(_as_titan, run, timeout_seconds=3600).trace, expandable=True)


# -- DDP by hand


def by_hand(code: Path, pool: Pool) -> dict[str, int]:
    """Returns what the course's training by DDP of its own takes on a rank, by the names of its phases."""
    path = str(code / "Wedsonlin/assignment2-systems" / "cs336-basics")
    folders = [path, *(folder for folder in sys.path if folder)]
    samples, tokens = 2, 512  # 4 samples are shared by two ranks

    def build() -> nn.Module:
        sys.path[:0] = [folder for folder in folders if folder not in sys.path]
        from cs336_basics import model

        made: nn.Module = model.BasicsTransformerLM(vocab_size=VOCABULARY, context_length=tokens, **LARGE)
        return made

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        from cs336_basics.nn_utils import cross_entropy

        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()

    def optimizer(weights: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(weights, foreach=False)

    batch = tuple(torch.zeros(samples, tokens, dtype=torch.long, device="meta") for _ in range(2))
    trace = simulate_step(
        step, build, optimizer, batch, personality=Personality(capability=(9, 0)), steps=1, pool=pool
    ).trace
    began = next(i for i, run in enumerate(trace.runs) if run.phase == "forward")
    update = next(
        event
        for event, (kind, subject) in enumerate(zip(trace.kinds, trace.subjects, strict=True))
        if kind == ALLOC and trace.storages[subject].category == "optimizer_state"
    )
    player = Player(trace)
    player.play(through=trace.runs[began].at - 1)
    found = {"after_model_init": player.allocator.peak_allocated_bytes}
    for name, end in (("before_optimizer_step", update - 1), ("after_optimizer_step", None)):
        player.allocator.peak_allocated_bytes = player.allocator.allocated_bytes
        player.play(through=end) if end is not None else player.play()
        found[name] = player.allocator.peak_allocated_bytes
    return found


_BY_HAND = {
    "cs336_Wedsonlin_sharded_after_model_init": "after_model_init",
    "cs336_Wedsonlin_baseline_before_optimizer_step": "before_optimizer_step",
    "cs336_Wedsonlin_baseline_after_optimizer_step": "after_optimizer_step",
}
"""Row -> phase; the model is the same in both of its ways."""


# -- all rows


def rows_of(truth: Path) -> list[dict[str, Any]]:
    """Returns the rows of runs on several GPUs."""
    with gzip.open(truth / "more_memory.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [row for row in map(json.loads, lines) if row["n_gpus"] > 1]


def reason_for(row: dict[str, Any]) -> str:
    """Returns why a row is not predicted."""
    return next((reason for holds, reason in NOT_PREDICTED if holds(row)), "not run yet")


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns how far predictions are off."""
    off = [row["off"] for row in rows]
    return {
        "rows": len(off),
        "median": round(statistics.median(off), 4),
        "median_absolute": round(statistics.median(map(abs, off)), 4),
        "within_10_percent": sum(abs(one) <= TOLERANCE for one in off),
    }


def main() -> None:
    """Predicts every row that is complete, and writes `results/published_ranks.json`; goes on where it stopped."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("truth", type=Path, help="folder with more_memory.jsonl.gz")
    parser.add_argument("--code", type=Path, help="checkouts of the course's code (real_sequences.py)")
    parser.add_argument("--again", action="store_true", help="forget the rows that are there")
    options = parser.parse_args()
    rows, path = {row["id"]: row for row in rows_of(options.truth)}, RESULTS / f"{NAME}.json"
    there = [] if options.again or not path.exists() else json.loads(path.read_text(encoding="utf-8"))["rows"]
    found: dict[str, dict[str, Any]] = {row["id"]: row for row in there}
    pool = Pool()

    def add(id: str, what: str, nbytes: int) -> None:
        row = rows[id]
        gib = nbytes / GIB
        found[id] = {
            "id": id, "source": row["source"], "gpus": row["n_gpus"], "parallel": row["parallel"], "what": what,
            "confidence": row["confidence"], "published_gib": row["value_gib"], "predicted_gib": round(gib, 2),
            "off": round(gib / row["value_gib"] - 1, 4),
        }  # fmt: skip
        print(*found[id].values(), flush=True)
        _write(found, rows)

    try:
        for run in _TITAN:
            if run.id not in found:
                add(run.id, "reserved", predicted(run, pool))
        if options.code is not None and not set(_BY_HAND) <= set(found):
            phases = by_hand(options.code, pool)
            for id, phase in _BY_HAND.items():
                add(id, "allocated", phases[phase])
    finally:
        pool.close()
    _write(found, rows)


def _write(found: dict[str, dict[str, Any]], rows: dict[str, dict[str, Any]]) -> None:
    left = Counter((row["source"], reason_for(row)) for id, row in rows.items() if id not in found)
    predicted_rows = [found[id] for id in sorted(found)]
    write(
        NAME,
        {
            "rows_in_all": len(rows),
            **summary(predicted_rows),
            "rows_predicted": len(predicted_rows),
            "rows": predicted_rows,
            "not_predicted": [
                {"source": source, "reason": reason, "rows": count} for (source, reason), count in sorted(left.items())
            ],
        },
    )


if __name__ == "__main__":
    main()
