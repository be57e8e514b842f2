"""The library's AdamW with paged state in fp32."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.optim import Optimizer

from snugfit.errors import InputError
from snugfit.techniques.own_optimizer import STORAGE, Groups, OwnOptimizer, Settings, library_module
from snugfit.techniques.paged_state import PagedState, announce_pages


class Paged(OwnOptimizer):
    """How it is built."""

    def load(self) -> None:
        """Imports the library."""
        _adamw(self.name)

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
        made: Optimizer = _adamw(self.name)(marked, is_paged=device.type != "cpu", **settings)
        return made


@functools.cache
def _adamw(name: str) -> Any:
    """The library's AdamW, whose state is plain when it leaves and paged when it comes back."""
    library = library_module(name, "bitsandbytes", "bitsandbytes.optim")
    return type("PagedAdamW", (PagedState, library.AdamW), {})
