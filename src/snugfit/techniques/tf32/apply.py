"""TF32 allowed inside a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from snugfit.errors import warn
from snugfit.techniques.base import ModelTechnique


class TF32(ModelTechnique):
    """Allows TF32 inside a step and restores the caller's setting after it."""

    field = "precision"
    values = ("tf32",)

    def change(self, model: nn.Module) -> None:
        """Warns where the setting has no effect."""
        if self.setup.device.type == "cpu":
            warn(f"precision='tf32' has no effect on {self.setup.device.type}: only CUDA has TF32. It trains in fp32.")

    @contextmanager
    def around_step(self) -> Iterator[None]:
        """Context in which matmuls and convolutions may use TF32."""
        backends: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
        before = [backend.fp32_precision for backend in backends]
        for backend in backends:
            backend.fp32_precision = "tf32"
        try:
            yield
        finally:
            for backend, precision in zip(backends, before, strict=True):
                backend.fp32_precision = precision
