"""The library's AdamW with paged state in fp32."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from snugfit.errors import InputError
from snugfit.techniques.own_optimizer import STORAGE, Groups, OwnOptimizer, library_module
from snugfit.techniques.paged_state import announce_pages


class Paged(OwnOptimizer):
    """How it is built."""

    @classmethod
    def load(cls, name: str) -> None:
        """Imports the library."""
        library_module(name, "bitsandbytes", "snugfit.techniques.paged_adamw.bitsandbytes")

    @classmethod
    def announce(cls, name: str, device: torch.device) -> None:
        """Says that nothing is paged on cpu."""
        announce_pages(name, device, runs_as="adamw of bitsandbytes")

    @classmethod
    def make(
        cls, name: str, groups: Groups, device: torch.device, settings: dict[str, Any], kernels: dict[str, bool]
    ) -> Optimizer:
        """Builds it; the kernels are the library's."""
        if any(weight.dtype == torch.float64 for group in groups for weight in group["params"]):
            raise InputError(f"optimizer {name!r} computes in fp32, and the model's weights are float64. Use adamw.")
        library = library_module(name, "bitsandbytes", "snugfit.techniques.paged_adamw.bitsandbytes")
        marked = [{STORAGE: name, **group} for group in groups]
        made: Optimizer = library.PagedAdamW(marked, is_paged=device.type != "cpu", **settings)
        return made
