"""The clock against published step times of whole models; nothing in the package is fitted to them.

    python -m benchmarks.published_times TRUTH [--minutes 20]      (goes on where it stopped)

TRUTH is a folder with step times that others measured (step_times.jsonl.gz); it is not part of this repository.

- **timm's** own results on an RTX 3090 (github.com/huggingface/pytorch-image-models, results/benchmark-train-amp-*.csv):
  forward in float16 autocast, loss, backward and SGD with Nesterov momentum, one parameter after the other as torch 1.10 to
  1.12 did it, gradients added to those of the step before. Of rows that differ in versions only, the newest counts.
- **Lambda's** logs on one card (github.com/lambdal/deeplearning-benchmark): ResNet-50 and BERT for SQuAD of NVIDIA's
  DeepLearningExamples, on every card of ours. Of many equal runs the median counts as measured.

Each step is recorded by hand, once; its operators are kept in build/published_times, and what the clock says of them is
worked out anew each time. What torch 1.12 did otherwise than today's is counted as it was then (`as_then`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import published_steps, recorded_calls, results_file
from benchmarks.recorded_calls import Call
from benchmarks.squad_step import COLLATE_SECONDS, SIZES
from snugfit.devices import DEVICES, Device, device_named
from snugfit.errors import SnugfitError
from snugfit.fake_device.personality import Personality
from snugfit.recording.clock import clock
from snugfit.recording.kernel_times import MEMORY_SHARE, run_seconds
from snugfit.recording.trace import OperatorRun

CARD = "rtx-3090"
TIMM, LAMBDA = "huggingface/pytorch-image-models", "lambdal/deeplearning-benchmark"
NAME = "published_times"
CACHE = Path("build") / NAME
OTHER_CODE = {"tresnet": "measured with the activated batch norm of the package inplace_abn, which timm has left since"}
"""First part of a model's name -> why today's timm is not what was measured."""
BLOCK_BANDWIDTH = {
    "1.10": (32, 8.5e9), "1.11": (32, 8.5e9), "1.12": (16, 27e9), "1.13": (16, 27e9), "2.3": (16, 27e9), "2.5": (16, 27e9),
}  # fmt: skip
"""torch -> columns and bytes a second, in float32, of a block in the kernel that made the gradients of layer norm's weight and bias until
torch 2.8 (github.com/pytorch/pytorch/pull/148605): one block for so many columns, whatever the number of rows. Such a block
of 512 threads moves 8.5 GB/s with one load a thread under way (github.com/intel/torch-xpu-ops/pull/1880: 77 MB in 9 ms),
and with the eight of 1.12 some 16 kB in 0.6 microseconds. torch 2 has blocks of 32 columns and twice as many threads. In 16 bits
a load brings half. The containers of torch 1.7 had apex's layer norm, which sums in two kernels of many blocks."""

NARROW = 1.13
"""How much longer elementwise kernels in 16 bits took on Hopper until torch 2.6, whose loads were of 8 bytes instead of 16
(github.com/pytorch/pytorch/pull/141959: GELU of 2**29 numbers in bfloat16 0.84 ms before, 0.74 after)."""
HOPPER_THEN = ("1.13", "2.3", "2.5")


def as_then(run: OperatorRun, call: Call, version: str, device: Device) -> OperatorRun:
    """Returns an operator of the 3090's rows as that torch ran it."""
    if version not in BLOCK_BANDWIDTH or device.memory_bandwidth is None:
        return run
    if version in HOPPER_THEN and device.compute_capability == (9, 0) and _narrow(run):
        return run._replace(again_bytes=run.again_bytes + int((NARROW - 1) * (run.read_bytes + run.written_bytes)))
    if run.operator == "aten.native_layer_norm_backward.default":
        columns, rate = BLOCK_BANDWIDTH[version]
        read = call.args[0].nbytes + call.args[1].nbytes
        rate *= 0.5 if call.args[0].dtype in ("float16", "bfloat16") else 1.0
        share = min(1.0, -(-math.prod(call.args[2]) // columns) * rate / (device.memory_bandwidth * MEMORY_SHARE))
        return run._replace(again_bytes=int(read + read / share))
    if run.operator == "aten._to_copy.default" and version < "1.13" and call.args[0].dtype != call.result.dtype:
        # Each element was cast by a switch over types (`LoadWithCast`), two bytes a load; a quarter more is an estimate.
        return run._replace(again_bytes=run.again_bytes + (run.read_bytes + run.written_bytes) // 4)
    return run


def _narrow(run: OperatorRun) -> bool:
    """Whether an operator is elementwise in 16 bits."""
    namespace, name, overload = run.operator.split(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    return run.dtype in ("float16", "bfloat16") and torch.Tag.pointwise in operator.tags


def timm_rows(path: Path) -> list[dict[str, Any]]:
    """Returns one row for each model that today's timm has, batch and layout, in an order that is random but the same."""
    import timm

    known = set(timm.list_models())
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in _rows(path):
        if row["source"] == TIMM and row["model"] in known and row["image_size"] == image_size(row["model"]):
            key = (row["model"], row["batch"], row["channels_last"])
            if key not in newest or row["torch"] > newest[key]["torch"]:
                newest[key] = row
    rows = [newest[key] for key in sorted(newest)]
    random.Random(1).shuffle(rows)
    return [{**row, "key": f"{row['model']}__{row['batch']}__{int(row['channels_last'])}"} for row in rows]


def lambda_rows(path: Path) -> list[dict[str, Any]]:
    """Returns one row for each card of ours, model, precision and batch: the median of all runs that are complete."""
    cards = {device.vendor_name: device.name for device in DEVICES} | {"A100-SXM4-40GB": "a100-40gb"}
    alike = defaultdict(list)
    for row in _rows(path):
        card = cards.get(row["card"]) or cards.get(f"NVIDIA {row['card']}")
        if row["source"] == LAMBDA and row["n_gpus"] == 1 and row["confidence"] in "AB" and card:
            name = row["model"].split()[0]
            precision = "fp16" if "fp16" in row["precision"] else "tf32" if row["precision"].startswith("fp32") else ""
            if precision:
                version = ".".join(row["torch"].split(".")[:2])
                alike[card, name, precision, row["batch"], version].append(row["step_ms"])
    return [
        {"card": card, "model": name, "precision": precision, "batch": batch, "torch": version, "runs": len(found),
         "step_ms": statistics.median(found), "key": f"lambda_{name}_{precision}_{batch}_{version}"}
        for (card, name, precision, batch, version), found in sorted(alike.items())
    ]  # fmt: skip


def _rows(path: Path) -> Any:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def image_size(model: str) -> int:
    import timm

    return int(timm.get_pretrained_cfg(model).input_size[-1]) if timm.is_model_pretrained(model) else 224


def record(row: dict[str, Any]) -> str:
    """Records a row's step; returns why that cannot be, or nothing."""
    capability = device_named(row.get("card", CARD) if row["key"].startswith("lambda") else CARD).compute_capability
    step = published_steps.lambdas(row) if row["key"].startswith("lambda") else published_steps.timms(row)
    try:
        calls = recorded_calls.record(*step, Personality(capability=capability or (8, 0)))
    except SnugfitError as error:
        return str(error)[:200]
    recorded_calls.save(CACHE / f"{row['key']}.calls", calls)
    return ""


def told(row: dict[str, Any], card: Device, version: str) -> dict[str, Any]:
    """Returns what the clock says of a row that was recorded, beside what was measured."""
    calls = recorded_calls.load(CACHE / f"{row['key']}.calls")
    runs = [as_then(run, call, version, card) for run, call in recorded_calls.runs(calls)]
    timing = clock(recorded_calls.trace_of(runs), card)
    assert timing is not None
    collating = COLLATE_SECONDS * row["batch"] if row["model"] in SIZES else 0.0
    classes: Counter[str] = Counter()
    for run in runs:
        classes[_class(run)] += run_seconds(run, card) or 0.0  # type: ignore[assignment]
    return {
        "predicted_ms": round((timing.step_seconds + collating) * 1e3, 1),
        "predicted_over_measured": round((timing.step_seconds + collating) * 1e3 / row["step_ms"], 3),
        "bound": timing.bound,
        "most_time_in": [
            f"{name} {seconds / timing.step_seconds:.2f}" for name, seconds in classes.most_common(3)
        ],
    }  # fmt: skip


def _class(run: OperatorRun) -> str:
    """The class of kernel that an operator belongs to."""
    shape = run.convolution
    if not shape:
        return run.operator.removeprefix("aten.").rsplit(".", 1)[0]
    kind = "dense" if shape.groups == 1 else "depthwise" if shape.inputs == shape.groups else "grouped"
    return f"{kind} convolution, {'gradients' if shape.gradients else 'forward'}"


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns how far predictions are off, over rows that have one."""
    ratios = np.array([row["predicted_over_measured"] for row in rows])
    if not len(ratios):
        return {"rows": 0}
    per_image = np.array([row["predicted_ms"] / row["batch"] for row in rows])
    logs = np.abs(np.log(ratios))
    return {
        "rows": len(rows),
        "median": round(float(np.median(ratios)), 3),
        "p10": round(float(np.percentile(ratios, 10)), 3),
        "p90": round(float(np.percentile(ratios, 90)), 3),
        "within_25_percent": round(float((logs < math.log(1.25)).mean()), 3),
        "within_factor_1.6": round(float((logs < math.log(1.6)).mean()), 3),
        "rank_correlation_per_image": round(_rank_correlation(per_image, per_image / ratios), 3),
    }


def _rank_correlation(left: np.ndarray, right: np.ndarray) -> float:
    ranks = [values.argsort().argsort().astype(float) for values in (left, right)]
    return float(np.corrcoef(*ranks)[0, 1]) if len(left) > 2 else float("nan")


def family(model: str) -> str:
    """Returns the first word of a model's name without its numbers, which is timm's name of the family."""
    return model.removeprefix("tf_").split("_")[0].rstrip("0123456789")


def document(
    timm: list[dict[str, Any]], lambdas: list[dict[str, Any]], missing: list[dict[str, Any]]
) -> dict[str, Any]:
    families = Counter(family(row["model"]) for row in timm)
    worst = sorted(timm, key=lambda row: -abs(math.log(row["predicted_over_measured"])))[:10]
    by_card: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in lambdas:
        by_card[row["card"]].append(row)
    return {
        "card": CARD,
        "source": f"{TIMM}, results/benchmark-train-amp-*-rtx3090.csv",
        "all": summary(timm),
        "channels first": summary([row for row in timm if not row["channels_last"]]),
        "channels last": summary([row for row in timm if row["channels_last"]]),
        "families": {
            name: summary([row for row in timm if family(row["model"]) == name])
            for name, count in families.most_common()
            if count >= 4
        },
        "worst": worst,
        "not_told": missing,
        "lambda": {
            "source": LAMBDA,
            "cards": {
                card: {"runs": sum(row["runs"] for row in rows), **summary(rows)} for card, rows in by_card.items()
            },
            "rows": lambdas,
        },
        "rows": [{name: value for name, value in row.items() if name != "most_time_in"} for row in timm],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("truth", type=Path, help="folder with step_times.jsonl.gz")
    parser.add_argument("--minutes", type=float, default=20, help="record for so long at most (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="forget the recordings that are there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    end, path = time.monotonic() + 60 * options.minutes, options.truth / "step_times.jsonl.gz"
    if options.again:
        for file in CACHE.glob("*.calls"):
            file.unlink()
    found: dict[str, list[dict[str, Any]]] = {"timm": [], "lambda": []}
    missing: list[dict[str, Any]] = []
    sources: tuple[tuple[str, Callable[[Path], list[dict[str, Any]]]], ...] = (
        ("lambda", lambda_rows),
        ("timm", timm_rows),
    )
    for source, rows_of in sources:
        for row in rows_of(path):
            names = ("card", "model", "precision", "batch", "torch", "runs", "step_ms") if source == "lambda" else (
                "model", "batch", "channels_last", "step_ms")  # fmt: skip
            said = {name: row[name] for name in names}
            why = next((text for name, text in OTHER_CODE.items() if row["model"].startswith(name)), "")
            if not why and not (CACHE / f"{row['key']}.calls").exists():
                if time.monotonic() > end:
                    continue
                why = record(row)
                print(row["key"], why or "recorded", flush=True)
            if why:
                missing.append({**said, "why": why})
            else:
                card = device_named(row["card"] if source == "lambda" else CARD)
                found[source].append({**said, **told(row, card, row["torch"])})
    results_file.write(NAME, document(found["timm"], found["lambda"], missing))
    print(json.dumps({"timm": summary(found["timm"]), "not told": len(missing)}))


if __name__ == "__main__":
    main()
