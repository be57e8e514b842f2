"""What a ladder runs for each rung: the command line of `snugfit train`, or with `--estimate` that of `snugfit estimate`."""

from __future__ import annotations

import argparse
from pathlib import Path

from snugfit.errors import InputError
from snugfit.ladder import Rung
from snugfit.ladder_presets import Preset
from snugfit.report.words import as_options

PREDICTED = (
    "peak_allocated_bytes", "peak_reserved_bytes", "context_bytes", "context_source", "total_bytes", "host_bytes",
    "anatomy_bytes", "experts_bytes", "peak_phase", "step_seconds", "flops", "device",
)  # fmt: skip
"""What an entry keeps of an estimate."""
_SHAPE = ("task", "image_size", "seq_len")
DATA = (*_SHAPE, "samples", "text_column", "label_column", "prompt_column", "download")
"""Options that a ladder passes on."""


def rung_words(rung: Rung, args: argparse.Namespace, run_dir: Path) -> list[str]:
    """Returns the arguments of `snugfit` that train a rung, without `--json`."""
    passed: tuple[str, ...] = _SHAPE
    words, device = ["estimate", args.model], args.card or "cpu"
    if not args.estimate:
        words = ["train", args.model, "--data", args.data, "--run-dir", str(run_dir), "--overwrite"]
        passed, device = DATA, args.device
    for text in args.model_arg or ():
        words += ["--model-arg", text]
    return [
        *words,
        *as_options({**{name: getattr(args, name) for name in passed}, "device": device}),
        *settings_words(rung),
    ]


def settings_words(rung: Rung) -> list[str]:
    """Returns recipe and training settings of a rung as options."""
    optimizer = rung.recipe.optimizer or rung.workload.optimizer
    changed = {**rung.recipe.to_mapping(defaults=False), **rung.workload.to_mapping(defaults=False)}
    return as_options({**changed, "optimizer": optimizer})


def use_preset(args: argparse.Namespace, preset: Preset) -> None:
    """Fills a preset's shape into the arguments; `InputError` where something else was given for it."""
    said = {
        "MODEL": args.model,
        "--batch-size": args.workload_batch_size,
        "--sgd-lr": args.sgd_lr,
        "--image-size": args.image_size,
        "--model-arg": None if preset.config is not None else args.model_arg,
        "--seq-len": None if preset.seq_len is not None else args.seq_len,
    }
    given = [name for name, value in {**said, "--task": args.task}.items() if value is not None]
    if given:
        raise InputError(f"{', '.join(given)} has no place beside --preset {preset.name}, which says it. Leave it out.")
    args.task = preset.task
    args.seq_len = args.seq_len or _text(preset.seq_len)
    args.image_size = _text(preset.image_size)
    args.model_arg = [*preset.model_args, *(args.model_arg or ())] or None
    args.data = args.data or "random"
    args.card = args.card or preset.card


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)
