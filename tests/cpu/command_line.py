"""Runs real `snugfit` commands, as a person would type them; most without importing torch anew (`warm_start.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import patience

MODEL_FILE = """
import torch
from torch import nn


def build(num_classes=10, width=16, dropout=0.1):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
        nn.Linear(256, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, num_classes),
    )


def raises():
    raise RuntimeError("no such layer")


def no_module():
    return 3


def two_classes():
    return nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(64, 2))
"""
"""User models for [1, 8, 8] images."""


INSTALLED = Path(sys.executable).with_name("snugfit")
"""The command that installing the package makes."""


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "snugfit", *map(str, words)]


def environment() -> dict[str, str]:
    """The threads of the tests: bitwise equality is a promise for the same number of them."""
    return {"OMP_NUM_THREADS": "1", **os.environ}


def run_command(*words: object, cwd: Path, installed: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; the installed one starts with nothing imported, and hashes of its own."""
    line = [str(INSTALLED), *map(str, words)] if installed else command(*words)
    return subprocess.run(
        line, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=patience.SECONDS, check=False
    )


def tiny_run(*more: object) -> list[object]:
    """A run on random images that takes moments."""
    return [
        "train", "model.py:build", "--data", "random", "--samples", "96", "--image-size", "8", "--batch-size", "16", *more
    ]  # fmt: skip
