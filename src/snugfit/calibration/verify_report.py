"""The file of `snugfit verify --report`: what somebody else needs to look into a wrong prediction."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import snugfit
from snugfit.machine import installed

LIBRARIES = ("torch", "triton", "numpy", "torchvision", "timm", "transformers", "peft", "torchao", "bitsandbytes")
"""What changes the memory of a step."""
ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Environment variables that change what is reserved."""


def report(asked: Mapping[str, Any], device: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns rows with what they hold for.

    Args:
        asked: Model, shapes and batch size, as they were typed.
        device: cpu or cuda; the card is asked for its name, so no row is measured after this.
        rows: From `verification.verify`.
    """
    from snugfit.processor import this_processor

    return {
        "snugfit": snugfit.__version__,
        "asked": dict(asked),
        "machine": {
            "system": platform.platform(),
            "processor": this_processor().in_words(),
            "card": None if device == "cpu" else _card(),
            "allocator": {name: os.environ[name] for name in ALLOCATOR_SETTINGS if name in os.environ},
        },
        "versions": {
            "python": platform.python_version(),
            **{name: one for name in LIBRARIES if (one := installed(name))},
        },
        "rows": list(rows),
    }


def _card() -> dict[str, Any]:
    import torch

    found = torch.cuda.get_device_properties()
    return {
        "name": found.name,
        "memory_bytes": found.total_memory,
        "compute_capability": f"{found.major}.{found.minor}",
        "multiprocessors": found.multi_processor_count,
        "cuda": torch.version.cuda,
    }
