"""The library's AdamW with paged state in fp32."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from snugfit.errors import InputError
from snugfit.techniques.own_optimizer import STORAGE, Groups, OwnOptimizer, Settings, library_module
from snugfit.techniques.paged_state import announce_pages


class Paged(OwnOptimizer):
    """How it is built."""

    def load(self) -> None:
        """Imports the library."""
        self._library()

    def _library(self) -> Any:
        return library_module(self.name, "bitsandbytes", "snugfit.techniques.paged_adamw.bitsandbytes")

    def announce(self, device: torch.device) -> None:
        """Says that nothing is paged on cpu."""
        announce_pages(self.name, device, runs_as="adamw of bitsandbytes")

    def make(self, groups: Groups, device: torch.device, settings: Settings, kernels: Settings) -> Optimizer:
        """Builds it; the kernels are the library's."""
        if any(weight.dtype == torch.float64 for group in groups for weight in group["params"]):
            raise InputError(
                f"optimizer {self.name!r} computes in fp32, and the model's weights are float64. Use adamw."
            )
        marked = [{STORAGE: self.name, **group} for group in groups]
        made: Optimizer = self._library().PagedAdamW(marked, is_paged=device.type != "cpu", **settings)
        return made
