"""Recipes that are run and held against their predictions, bytes and time: what `snugfit verify` does. Imports no torch.

Each recipe is `snugfit train` on random data in a fresh process, as a user would run it. Bytes are counted over all steps;
the time is that of the later ones, when everything that is made once is there.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from snugfit.errors import SnugfitError
from snugfit.measure.fresh import run_json
from snugfit.runs.run_files import METRICS

STEPS = 21
"""Steps of each run: losses are read, and time is taken, after the first and then after every ten."""
STOCK = f"{Path(__file__).with_name('stock_model.py')}:model"
STOCK_IMAGE_SIZE = 32


def recipes(batch_size: int) -> dict[str, dict[str, Any]]:
    """Returns six recipes by name: what most people combine.

    Args:
        batch_size: Samples of an update.
    """
    return {
        "plain": {},
        "microbatches": {"microbatch_size": max(1, batch_size // 4)},
        "checkpointing": {"checkpoint": "all"},
        "step in backward": {"step_in_backward": True},
        "bf16-mixed": {"precision": "bf16-mixed"},
        "bf16, checkpointing": {"precision": "bf16-true", "checkpoint": "all"},
    }


def verify(
    name: str,
    recipe: dict[str, Any],
    words: Sequence[str],
    *,
    batch_size: int,
    run: Callable[..., dict[str, Any]] = run_json,
    on_line: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Trains by a recipe and returns what was predicted beside what was measured.

    Args:
        name: The recipe's name.
        recipe: Its fields.
        words: Model, shapes and device as options of `snugfit train`.
        batch_size: Samples of an update.
        run: Runs a command and returns its document.
        on_line: Gets each line that the command writes to stderr.

    Returns:
        A row as in benchmarks/results: `name`, `settings`, `predicted` and `measured` (bytes, seconds of a step), and what
        they hold for; `error` instead where the recipe could not be run.
    """
    settings = {"batch_size": batch_size, "recipe": recipe}
    options = [
        f"--{field.replace('_', '-')}" + ("" if value is True else f"={value}") for field, value in recipe.items()
    ]
    with tempfile.TemporaryDirectory(prefix="snugfit-verify-") as folder:
        run_dir = Path(folder) / "run"
        argv = [
            "train", *words, "--data", "random", "--samples", str(batch_size * STEPS), "--batch-size", str(batch_size),
            "--max-steps", str(STEPS), "--no-evaluate", "--predict", "--run-dir", str(run_dir), *options,
        ]  # fmt: skip
        try:
            document = run(argv, on_line=on_line, tuned=False)
        except SnugfitError as error:
            return {"name": name, "settings": settings, "error": str(error)}
        lines = (run_dir / METRICS).read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
    speeds = [row["samples_per_second"] for row in rows if row.get("step", 0) > STEPS // 2 and "loss" in row]
    measured = {**document["measured"], "step_seconds": batch_size / statistics.median(speeds) if speeds else None}
    return {
        "name": name,
        "settings": settings,
        "predicted": document["predicted"],
        "measured": measured,
        "device": document["device"],
        "torch_version": document["torch_version"],
    }


def compared(row: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Returns what was predicted and measured of a row, by name: `allocated`, `reserved`, `seconds`; where both are known.

    Args:
        row: From `verify`.
    """
    pairs = {
        "allocated": ("peak_tensor_bytes", "peak_allocated_bytes"),
        "reserved": ("peak_reserved_bytes",),
        "seconds": ("step_seconds",),
    }
    found = {}
    for name, keys in pairs.items():
        values = [(row["predicted"].get(key), row["measured"].get(key)) for key in keys]
        known = [(predicted, measured) for predicted, measured in values if predicted is not None and measured]
        if known:
            found[name] = known[0]
    return found
