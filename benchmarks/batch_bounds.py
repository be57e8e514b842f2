"""Batches that ran on a card, and the next larger ones that did not, against the memory that we say they need.

The rows are timm's own training results on an RTX 3090 (github.com/huggingface/pytorch-image-models,
results/benchmark-train-amp-*-rtx3090.csv): its benchmark tries 512, 384, 256, 192, 128, 96 ... until one runs. Both tries
are recorded as the step that `published_times.py` describes. Of several rows that differ in the versions only, the newest
counts.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

from benchmarks.published_steps import timms
from benchmarks.published_times import CARD, image_size
from snugfit.devices import device_named
from snugfit.errors import SnugfitError
from snugfit.fake_device.personality import Personality
from snugfit.recording.replays import Replays
from snugfit.simulator.own_step import simulate_step
from snugfit.units import MIB
from snugfit.workers.pool import Pool

TOTAL_BYTES = 24_265 * MIB
"""What torch calls total on the card of these runs."""
CONTEXT_BYTES = 1_488 * MIB
"""CUDA's context there: 1644 MiB with one tensor of 156 MiB on an RTX 3090, torch 1.7 and CUDA 11.0, which loads all kernels
at once as CUDA 11.3 did (github.com/pytorch/pytorch/issues/49877)."""


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Returns one row for each model that today's timm has and each layout, in an order that is random but the same."""
    import timm

    known = set(timm.list_models())
    newest: dict[tuple[Any, ...], dict[str, Any]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            model, sure = row["model"], row.get("confidence_fit") == "A" and row.get("confidence_fail") in ("A", None)
            if (
                sure
                and model in known
                and row["image_size"] == image_size(model)
                and row["id"].startswith("timm_train")
            ):
                key = (model, row["channels_last"])
                if key not in newest or row["torch"] > newest[key]["torch"]:
                    newest[key] = row
    rows = [newest[key] for key in sorted(newest)]
    random.Random(2).shuffle(rows)
    return rows


def needed(row: dict[str, Any], batch: int, pool: Pool) -> int:
    """Returns the bytes in which three steps of a batch go through, CUDA's context apart."""
    capability = device_named(CARD).compute_capability or (8, 6)
    step, build, optimizer, tensors = timms({**row, "batch": batch})
    recording = simulate_step(
        step, build, optimizer, tensors, personality=Personality(capability=capability), pool=pool
    )
    return Replays(recording.trace).smallest_bytes


def predicted(row: dict[str, Any], pool: Pool) -> dict[str, Any]:
    """Returns the memory that a row's two batches need."""
    found = {name: row.get(name) for name in ("model", "channels_last", "fit_batch", "fail_batch")}
    try:
        for name in ("fit", "fail"):
            batch = row.get(f"{name}_batch")
            found[f"{name}_mib"] = None if batch is None else round(needed(row, batch, pool) / MIB, 1)
    except SnugfitError as error:
        found["error"] = str(error)[:200]
    return found


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns how often what ran is said to fit, and what did not run not to."""
    capacity = (TOTAL_BYTES - CONTEXT_BYTES) / MIB
    told = [row for row in rows if "error" not in row]
    ran = [row["fit_mib"] <= capacity for row in told]
    failed = [row["fail_mib"] > capacity for row in told if row["fail_mib"] is not None]
    return {
        "capacity_mib": round(capacity),
        "ran": len(ran),
        "said_to_fit": sum(ran),
        "failed": len(failed),
        "said_not_to_fit": sum(failed),
    }
