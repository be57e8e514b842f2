"""The models of `subjects.py` for `snugfit train`: `benchmarks/gpu/train_models.py:build --model-arg subject=NAME`."""

from __future__ import annotations

import torch

from benchmarks.gpu.subjects import SUBJECTS


def build(subject: str, kind: str = "cpu") -> torch.nn.Module:
    """Builds a model of the list.

    Args:
        subject: A key of `SUBJECTS`.
        kind: `cuda` or `cpu`: its size.
    """
    return SUBJECTS[subject].build(kind)
