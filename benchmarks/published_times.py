"""The clock against published step times of whole models; nothing in the package is fitted to them.

    python -m benchmarks.published_times TRUTH [--minutes 20]      (goes on where it stopped)

TRUTH is a folder with step times that others measured (step_times.jsonl.gz); it is not part of this repository. The rows
are timm's own results on an RTX 3090 (github.com/huggingface/pytorch-image-models, results/benchmark-train-amp-*.csv):
forward in float16 autocast, loss, backward and SGD with Nesterov momentum, one parameter after the other as torch 1.10 to
1.12 did it, gradients added to those of the step before. Each is recorded as that step, by hand, and told by the clock. Of
several rows that differ in the versions only, the newest counts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks import results_file
from snugfit.devices import device_named
from snugfit.errors import SnugfitError
from snugfit.fake_device.personality import Personality
from snugfit.recording.clock import clock, runs_of_step
from snugfit.recording.kernel_times import run_seconds
from snugfit.simulator.session import simulate_step
from snugfit.workers.pool import Pool

CARD = "rtx-3090"
SOURCE = "huggingface/pytorch-image-models"
NAME = "published_times"


def build(name: str, channels_last: bool) -> Callable[[], torch.nn.Module]:
    """Returns what builds a model as the rows were measured: with attention made of its operators, as timm had it then."""

    def make() -> torch.nn.Module:
        import timm
        from timm.layers import set_fused_attn

        set_fused_attn(False)
        model: torch.nn.Module = timm.create_model(name).train()
        return model.to(memory_format=torch.channels_last) if channels_last else model

    return make


def train(model: Any, optimizer: Any, batch: Any) -> None:
    with torch.autocast("cuda", dtype=torch.float16):
        output = model(batch[0])
        output = output[0] if isinstance(output, list | tuple) else output
        F.cross_entropy(output, batch[1]).backward()
    optimizer.step()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, nesterov=True, foreach=False)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Returns one row for each model that today's timm has, batch and layout, in an order that is random but the same."""
    import timm

    known = set(timm.list_models())
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            if row["source"] == SOURCE and row["model"] in known and row["image_size"] == image_size(row["model"]):
                key = (row["model"], row["batch"], row["channels_last"])
                if key not in newest or row["torch"] > newest[key]["torch"]:
                    newest[key] = row
    rows = [newest[key] for key in sorted(newest)]
    random.Random(1).shuffle(rows)
    return rows


def image_size(model: str) -> int:
    import timm

    return int(timm.get_pretrained_cfg(model).input_size[-1]) if timm.is_model_pretrained(model) else 224


def predicted(row: dict[str, Any], pool: Pool) -> dict[str, Any]:
    """Returns what the clock says of a row, beside what was measured."""
    layout = torch.channels_last if row["channels_last"] else torch.contiguous_format
    shape = (row["batch"], 3, row["image_size"], row["image_size"])
    images = torch.empty(shape, device="meta").to(memory_format=layout)
    labels = torch.empty(row["batch"], dtype=torch.long, device="meta")
    card = device_named(CARD)
    found: dict[str, Any] = {name: row[name] for name in ("model", "batch", "channels_last")}
    try:
        trace = simulate_step(
            train, build(row["model"], row["channels_last"]), sgd, (images, labels),
            personality=Personality(capability=card.compute_capability or (8, 6)), pool=pool,
        ).trace  # fmt: skip
    except SnugfitError as error:
        return {**found, "error": str(error)[:200]}
    timing = clock(trace, card)
    assert timing is not None
    operators: Counter[str] = Counter()
    for index in runs_of_step(trace):
        operators[trace.runs[index].operator] += run_seconds(trace.runs[index], card) or 0.0  # type: ignore[assignment]
    return {
        **found,
        "predicted_ms": round(timing.step_seconds * 1e3, 1),
        "predicted_over_measured": round(timing.step_seconds * 1e3 / row["step_ms"], 3),
        "bound": timing.bound,
        "most_time_in": operators.most_common(1)[0][0],
    }


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


def document(rows: list[dict[str, Any]]) -> dict[str, Any]:
    told = [row for row in rows if "predicted_ms" in row]
    families = Counter(family(row["model"]) for row in told)
    worst = sorted(told, key=lambda row: -abs(math.log(row["predicted_over_measured"])))[:10]
    return {
        "card": CARD,
        "source": f"{SOURCE}, results/benchmark-train-amp-*-rtx3090.csv",
        "all": summary(told),
        "channels first": summary([row for row in told if not row["channels_last"]]),
        "channels last": summary([row for row in told if row["channels_last"]]),
        "families": {
            name: summary([row for row in told if family(row["model"]) == name])
            for name, count in families.most_common()
            if count >= 4
        },
        "worst": worst,
        "not_told": [row for row in rows if "error" in row],
        "rows": told,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("truth", type=Path, help="folder with step_times.jsonl.gz")
    parser.add_argument("--minutes", type=float, default=20, help="stop after so many (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="forget the rows that are there")
    options = parser.parse_args()
    path = results_file.RESULTS / f"{NAME}.json"
    there = json.loads(path.read_text(encoding="utf-8")) if path.exists() and not options.again else {}
    rows = [*there.get("rows", []), *there.get("not_told", [])]
    done = {(row["model"], row["batch"], row["channels_last"]) for row in rows}
    pool, end = Pool(), time.monotonic() + 60 * options.minutes
    for row in rows_of(options.truth / "step_times.jsonl.gz"):
        if time.monotonic() > end:
            break
        if (row["model"], row["batch"], row["channels_last"]) not in done:
            rows.append(predicted(row, pool))
            print(*rows[-1].values(), flush=True)
    pool.close()
    results_file.write(NAME, document(rows))
    print(json.dumps(document(rows)["all"]))


if __name__ == "__main__":
    main()
