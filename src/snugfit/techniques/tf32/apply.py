"""TF32 allowed inside a step."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from snugfit.attributes import attributes_set
from snugfit.errors import warn
from snugfit.techniques.base import ModelTechnique


class TF32(ModelTechnique):
    """Allows TF32 inside a step and restores the caller's setting after it."""

    field = "precision"
    stage = "numbers"
    values = ("tf32",)
    spans_backward = True

    def change(self, model: nn.Module) -> None:
        """Warns where the setting has no effect."""
        if self.setup.device.type == "cpu":
            warn(f"precision='tf32' has no effect on {self.setup.device.type}: only CUDA has TF32. It trains in fp32.")

    def around_step(self) -> AbstractContextManager[None]:
        """Returns a context in which matmuls and convolutions may use TF32."""
        backends: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
        return attributes_set(backends, fp32_precision="tf32")
