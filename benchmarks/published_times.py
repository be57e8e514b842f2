"""The clock against published step times of whole models; nothing in the package is fitted to them.

    python -m benchmarks.published_times TRUTH [--minutes 20] [--only inference,lambda]      (goes on where it stopped)

TRUTH is a folder with step times that others measured (step_times*.jsonl.gz); it is not part of this repository.

- **timm's** own results on an RTX 3090 (github.com/huggingface/pytorch-image-models, results/benchmark-train-amp-*.csv):
  forward in float16 autocast, loss, backward and SGD with Nesterov momentum, one parameter after the other as torch 1.10 to
  1.12 did it, gradients added to those of the step before. Of rows that differ in versions only, the newest counts.
- **Lambda's** logs on one card (github.com/lambdal/deeplearning-benchmark): ResNet-50 and BERT for SQuAD of NVIDIA's
  DeepLearningExamples, on every card of ours. Of many equal runs the median counts as measured.

- **More** (`more_steps.py`): timm's inference, torchvision at batch 12, language models.

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import more_steps, published_steps, recorded_calls, results_file
from benchmarks.as_then import as_then
from benchmarks.squad_step import COLLATE_SECONDS, SIZES
from snugfit.devices import DEVICES, Device, device_named
from snugfit.errors import SnugfitError
from snugfit.fake_device.personality import Personality
from snugfit.recording.clock import clock
from snugfit.recording.kernel_times import run_seconds
from snugfit.recording.operator_run import OperatorRun

CARD = "rtx-3090"
TIMM, LAMBDA = "huggingface/pytorch-image-models", "lambdal/deeplearning-benchmark"
NAME = "published_times"
CACHE = Path("build") / NAME
OTHER_CODE = {"tresnet": "measured with the activated batch norm of the package inplace_abn, which timm has left since"}
"""First part of a model's name -> why today's timm is not what was measured."""


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
    return [
        {**row, "card": CARD, "kind": "timm", "key": f"{row['model']}__{row['batch']}__{int(row['channels_last'])}"}
        for row in rows
    ]


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
        {"kind": "lambda", "card": card, "model": name, "precision": precision, "batch": batch, "torch": version,
         "runs": len(found), "step_ms": statistics.median(found), "key": f"lambda_{name}_{precision}_{batch}_{version}"}
        for (card, name, precision, batch, version), found in sorted(alike.items())
    ]  # fmt: skip


def inference_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of timm's inference."""
    import timm

    known = {name: image_size(name) for name in timm.list_models()}
    return more_steps.inference_rows(_rows(path.with_name("step_times_inference.jsonl.gz")), known)


def torchvision_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of torchvision at batch 12."""
    return more_steps.torchvision_rows(_rows(path))


def language_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of language models."""
    return more_steps.language_rows(_rows(path))


SOURCES: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    "lambda": lambda_rows, "torchvision": torchvision_rows, "language": language_rows, "inference": inference_rows,
    "timm": timm_rows,
}  # fmt: skip
STEPS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "lambda": published_steps.lambdas, "torchvision": more_steps.vision, "language": more_steps.language,
    "inference": more_steps.inference, "timm": published_steps.timms,
}  # fmt: skip
SAID = ("card", "model", "precision", "batch", "seq_len", "trains", "channels_last", "torch", "runs", "step_ms")


def _rows(path: Path) -> Any:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def image_size(model: str) -> int:
    import timm

    return int(timm.get_pretrained_cfg(model).input_size[-1]) if timm.is_model_pretrained(model) else 224


def record(row: dict[str, Any]) -> str:
    """Records a row's step; returns why that cannot be, or nothing."""
    capability = device_named(row["card"]).compute_capability
    step = STEPS[row["kind"]](row)
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


def worst(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the ten rows that are furthest off."""
    return sorted(rows, key=lambda row: -abs(math.log(row["predicted_over_measured"])))[:10]


def by_card(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the summary of each card's rows."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["card"]].append(row)
    return {card: {"runs": sum(row.get("runs", 1) for row in of), **summary(of)} for card, of in sorted(found.items())}


def by_family(rows: list[dict[str, Any]], at_least: int) -> dict[str, dict[str, Any]]:
    """Returns the summary of each family that has so many rows."""
    return {
        name: summary([row for row in rows if family(row["model"]) == name])
        for name, count in Counter(family(row["model"]) for row in rows).most_common()
        if count >= at_least
    }


def document(found: dict[str, list[dict[str, Any]]], missing: list[dict[str, Any]]) -> dict[str, Any]:
    timm = found["timm"]
    return {
        "card": CARD,
        "source": f"{TIMM}, results/benchmark-train-amp-*-rtx3090.csv",
        "all": summary(timm),
        "channels first": summary([row for row in timm if not row["channels_last"]]),
        "channels last": summary([row for row in timm if row["channels_last"]]),
        "families": by_family(timm, 4),
        "worst": worst(timm),
        "not_told": missing,
        "lambda": {"source": LAMBDA, "cards": by_card(found["lambda"]), "rows": found["lambda"]},
        "more": {
            name: {
                "cards": by_card(found[name]),
                "families": by_family(found[name], 5),
                "worst": worst(found[name]),
                "rows": [_short(row) for row in found[name]],
            }
            for name in ("inference", "torchvision", "language")
        },
        "rows": [_short(row) for row in timm],
    }


def told_before(wanted: Sequence[str]) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any]]]:
    """Returns the rows of the results file, those of the wanted sources left out, and those that could not be told."""
    kept = json.loads((results_file.RESULTS / f"{NAME}.json").read_text(encoding="utf-8"))
    found = {"lambda": kept["lambda"]["rows"]}
    for name, part in {"timm": kept, **kept["more"]}.items():
        worst_rows = {json.dumps(_short(row)): row for row in part["worst"]}
        found[name] = [worst_rows.get(json.dumps(row), row) for row in part["rows"]]
    return {name: [] if name in wanted else found[name] for name in SOURCES}, kept["not_told"]


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "most_time_in"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("truth", type=Path, help="folder with step_times.jsonl.gz")
    parser.add_argument("--minutes", type=float, default=20, help="record for so long at most (default: %(default)s)")
    parser.add_argument(
        "--only", default=",".join(SOURCES), help="sources to tell; others stay as they are in the results"
    )
    parser.add_argument("--again", action="store_true", help="forget the recordings that are there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    end, path = time.monotonic() + 60 * options.minutes, options.truth / "step_times.jsonl.gz"
    if options.again:
        for file in CACHE.glob("*.calls"):
            file.unlink()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SOURCES}
    missing: list[dict[str, Any]] = []
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(SOURCES):
        parser.error(f"--only: {', '.join(sorted(unknown))} is unknown; there are {', '.join(SOURCES)}")
    if set(wanted) != set(SOURCES):
        found, missing = told_before(wanted)
    for source in wanted:
        for row in SOURCES[source](path):
            said = {name: row[name] for name in SAID if name in row}
            why = next((text for name, text in OTHER_CODE.items() if row["model"].startswith(name)), "")
            if not why and not (CACHE / f"{row['key']}.calls").exists():
                if time.monotonic() > end:
                    continue
                why = record(row)
                print(row["key"], why or "recorded", flush=True)
            if why:
                missing += [{**said, "why": why}] if {**said, "why": why} not in missing else []
            else:
                found[source].append({**said, **told(row, device_named(row["card"]), row["torch"])})
    results_file.write(NAME, document(found, missing))
    print(json.dumps({name: summary(rows) for name, rows in found.items()}))
    print("not told", len(missing))


if __name__ == "__main__":
    main()
