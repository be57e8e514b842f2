"""Peaks of training runs on one card that others measured, against what is predicted for the same steps.

The rows are those of `more_memory.jsonl.gz` whose configuration is complete enough to write the step down:

- **Transformers of Stanford's course CS336**: recorded steps of the course's model, with sizes and tokens in the name of the
  snapshot. Compared is the most that live blocks took in the recorded step (`real_sequences.py`: where the code is from).
- **Adapters of PEFT's MetaMathQA comparison** on Llama-3.2-3B: the 99th percentile of reserved memory. Batches have up to
  768 tokens there, and nobody says how many the fullest of a hundred has. So every row is predicted at 512 and at 768, and
  one length is read off all rows: that at which half of them are over and half under. What is left is how rows differ.
- **Lambda's logs**: the most that NVML showed once a second, caches of other shapes and of `cudnn.benchmark` included. It
  says nothing of what a step needs, but the batch ran: it is said whether it is said to fit.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks import recorded_workspaces
from benchmarks.gpu.rows import without_paths
from benchmarks.published_steps import lambdas
from benchmarks.real_sequences import LARGE, MEDIUM, Case, simulated
from snugfit.errors import SnugfitError
from snugfit.fake_device.personality import Personality
from snugfit.recording.replay import Player
from snugfit.recording.replays import Replays
from snugfit.recording.trace import Trace
from snugfit.simulator.own_step import simulate_step
from snugfit.units import MIB
from snugfit.workers.pool import Pool

WEDSONLIN, AIMETRICS = "Wedsonlin/assignment2-systems", "aimetrics/assignment2-systems"
COURSE = (
    (WEDSONLIN, "medium_512_training", Case(WEDSONLIN, "", 512, MEDIUM, True, True)),
    (WEDSONLIN, "medium_1024_training", Case(WEDSONLIN, "", 1024, MEDIUM, True, True)),
    (AIMETRICS, "2.7b_train_seq128.", Case(AIMETRICS, "", 128, LARGE, True, False)),
    (AIMETRICS, "2.7b_train_seq128_bf16", Case(AIMETRICS, "", 128, LARGE, True, True)),
    ("LINYUNLinYun/CS336-assignment2-systems", "xl_ctx128_full_step_bf16", Case(AIMETRICS, "", 128, LARGE, True, True)),
    (
        "LINYUNLinYun/CS336-assignment2-systems",
        "xl_ctx128_full_step_none",
        Case(AIMETRICS, "", 128, LARGE, True, False),
    ),
    (
        "LINYUNLinYun/CS336-assignment2-systems",
        "xl_ctx512_full_step_none",
        Case(AIMETRICS, "", 512, LARGE, True, False),
    ),
    ("kkaitlyn111/cs336-a2-systems", "memory_ctx128_fullstep", Case(WEDSONLIN, "", 128, LARGE, True, False)),
)
"""Repository, part of the snapshot's name, and the step; of repositories whose code is not at hand, that of another one with
the same model and optimizer (the course's AdamW, or torch's, which what is kept between steps tells). Left out is
kkaitlyn111's `memory_ctx512_fullstep_`: its peak is lower than that of the same model with 128 tokens, so it has no step."""
LLAMA = {
    "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True, "max_position_embeddings": 131072,
}  # fmt: skip
"""Llama-3.2-3B, from its config.json."""
PEFT_TOKENS, PEFT_BATCH = (512, 768), 4


def rows_of(truth: Path) -> list[dict[str, Any]]:
    """Returns the rows of runs on one card."""
    with gzip.open(truth / "more_memory.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [row for row in map(json.loads, lines) if row.get("n_gpus") == 1]


def step_peaks(trace: Trace) -> tuple[int, int]:
    """Returns the most that live blocks take in the last step, and the most that is reserved up to its end."""
    player = Player(trace)
    player.play(through=trace.step_events()[0])
    player.allocator.peak_allocated_bytes = player.allocator.allocated_bytes
    player.play()
    return player.allocator.peak_allocated_bytes, player.allocator.peak_reserved_bytes


def course_rows(rows: list[dict[str, Any]], code: Path, there: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Compares the recorded steps of the course's transformers, those apart that are `there`."""
    known: dict[str, int] = {}
    for repository, part, case in COURSE:
        row = next(one for one in rows if one["source"] == repository and part in one["path"])
        if Path(row["path"]).stem in there:
            yield there[Path(row["path"]).stem]
            continue
        if str(case) not in known:
            pool = Pool()  # the repositories have packages of the same name
            try:
                known[str(case)] = step_peaks(simulated(case, code, pool))[0]
            finally:
                pool.close()
        yield _compared(row, "allocated", row["allocated_mib"]["peak"], known[str(case)] / MIB, Path(row["path"]).stem)


def peft_rows(rows: list[dict[str, Any]], pool: Pool, there: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Predicts adapters on a Llama at two lengths, those apart that are `there`."""
    for row in rows:
        if row["source"] != "huggingface/peft" or "Llama-3.2-3B" not in row["model"]:
            continue
        name = row["id"].removeprefix("peft_").replace("--llama-3.2-3B", "")
        if "at_mib" in there.get(name, {}) or "error" in there.get(name, {}):
            yield there[name]
            continue
        try:
            sizes = [step_peaks(_adapted(row, tokens, pool))[1] / MIB for tokens in PEFT_TOKENS]
        except (SnugfitError, TypeError, KeyError) as error:
            yield {"source": row["source"], "name": name, "error": without_paths(str(error).splitlines()[0])[:160]}
            continue
        measured = row["reserved_99th_bytes"] / MIB
        found = _compared(row, "reserved, 99th percentile", measured, sizes[-1], name)
        yield {**found, "at_mib": [round(size, 1) for size in sizes]}


def at_one_length(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns adapters as predicted at the length at which half of them are over and half under."""
    low, high = PEFT_TOKENS
    told = [row for row in rows if "at_mib" in row]
    if not told:
        return rows
    share = statistics.median(
        (row["measured_mib"] - row["at_mib"][0]) / (row["at_mib"][1] - row["at_mib"][0]) for row in told
    )
    found = []
    for row in rows:
        if "at_mib" in row:
            short, long = row["at_mib"]
            predicted = short + share * (long - short)
            off = round(predicted / row["measured_mib"] - 1, 5)
            tokens = round(low + share * (high - low))
            row = {**row, "predicted_mib": round(predicted, 1), "off": off, "tokens": tokens}
        found.append(row)
    return found


def _adapted(row: dict[str, Any], tokens: int, pool: Pool) -> Trace:
    adapter = dict(row["adapter"])
    kind = adapter.pop("peft_type")
    named = row["id"].rpartition("n_frequency-")[2]
    if named.isdigit():
        adapter["n_frequency"] = int(named)

    def build() -> torch.nn.Module:
        from peft import get_peft_model
        from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
        from transformers import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(LlamaConfig(**LLAMA)).to(torch.bfloat16)
        config = PEFT_TYPE_TO_CONFIG_MAPPING[kind](task_type="CAUSAL_LM", **adapter)
        made: torch.nn.Module = get_peft_model(model, config).train()
        return made

    def step(model: Any, optimizer: Any, batch: Any) -> None:
        optimizer.zero_grad()
        model(input_ids=batch[0], attention_mask=batch[1], labels=batch[0]).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def adamw(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW([one for one in parameters if one.requires_grad])

    shape = (PEFT_BATCH, tokens)
    batch = tuple(torch.zeros(shape, dtype=torch.long, device="meta") for _ in range(2))
    return simulate_step(step, build, adamw, batch, personality=Personality(capability=(8, 9)), pool=pool).trace


def lambda_rows(rows: list[dict[str, Any]], pool: Pool, there: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Says of batches that ran whether they are said to fit; what a step needs is worked out once for all cards."""
    known: dict[str, float] = {name: row["predicted_mib"] for name, row in there.items()}
    for row in rows:
        if row["source"] != "lambdal/deeplearning-benchmark" or row["precision"].startswith("fp16 model"):
            continue  # the ResNet with a copy of its weights in float16 is another program
        name = row["model"].split()[0]
        precision = "fp16" if row["precision"][0] in "Aa" else "tf32" if "TF32" in row["precision"] else "fp32"
        key = f"{name} {precision} x {row['batch']}"
        if key not in known:
            then = ".".join(row["torch"].split(".")[:2])
            step = lambdas({"model": name, "precision": precision, "batch": row["batch"], "torch": then})
            capability = (8, 6) if precision == "tf32" else (7, 5)
            recorded = simulate_step(*step, personality=Personality(capability=capability), pool=pool)
            known[key] = Replays(recorded.trace).smallest_bytes / MIB
        total = float(row["card_memory"].split("_")[0])
        found = _compared(row, "NVML", row["value_mib"], known[key], key)
        yield {**found, "card": row["card"], "card_mib": total, "said_to_fit": known[key] <= total}


def _compared(row: dict[str, Any], what: str, measured: float, predicted: float, name: str) -> dict[str, Any]:
    return {
        "source": row["source"], "name": name, "what": what, "measured_mib": round(measured, 1),
        "predicted_mib": round(predicted, 1), "off": round(predicted / measured - 1, 5),
    }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns how far predictions of one group of rows are off."""
    off = [row["off"] for row in rows if row.get("off") is not None]
    return {
        "rows": len(off),
        "median": round(statistics.median(off), 5),
        "median_absolute": round(statistics.median(map(abs, off)), 5),
        "worst_under": min(off),
        "worst_over": max(off),
    }


def more_memory(
    truth: Path, code: Path | None, there: Mapping[str, Any], keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Compares all rows, those of the course only with their code; and one trace with cuDNN's workspaces in it.

    Args:
        truth: The folder.
        code: Checkouts of the course's code.
        there: What an earlier call returned or kept; rows in it are taken over.
        keep: Gets all that is known after each row, so that the next call goes on where this one was stopped.
    """
    rows, found = rows_of(truth), dict(there)
    pool = Pool()
    try:
        if "workspaces" not in found:
            found["workspaces"] = recorded_workspaces.compared(truth, pool)
            keep(found)
        before = {
            group: {row["name"]: row for row in there.get(group, {}).get("compared", [])}
            for group in ("peft", "lambda", "course")
        }
        groups: dict[str, Iterator[dict[str, Any]]] = {
            "peft": peft_rows(rows, pool, before["peft"]),
            "lambda": lambda_rows(rows, pool, before["lambda"]),
        }
        if code is not None:
            groups["course"] = course_rows(rows, code, before["course"])
        for group, made in groups.items():
            compared: list[dict[str, Any]] = []
            for row in made:
                compared.append(row)
                told = at_one_length(compared) if group == "peft" else compared
                if before[group].get(row["name"]) is not row:
                    print(*row.values(), flush=True)
                    rest = [one for name, one in before[group].items() if name not in {two["name"] for two in told}]
                    found[group] = _group([*told, *rest])
                    keep(found)
            found[group] = _group(at_one_length(compared) if group == "peft" else compared)
            keep(found)
    finally:
        pool.close()
    return found


def _group(compared: list[dict[str, Any]]) -> dict[str, Any]:
    return {**(summary(compared) if any("off" in row for row in compared) else {}), "compared": compared}
