"""AdamW with low-bit state, by the library that has the format."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from snugfit.errors import note
from snugfit.techniques.linear_layers import embedding_weights
from snugfit.techniques.own_optimizer import STORAGE, Groups, OwnOptimizer, Parting, Settings, library_module
from snugfit.techniques.paged_state import announce_pages

FULL_PRECISION = "full_precision"
"""Key of a parameter group: its state is not quantised."""

PAGED = "paged-adamw8bit"
"""The one whose state the CUDA driver moves to the host when the card is full."""
_ONE_KERNEL = "one kernel a parameter, no temporaries on CUDA, no compiler"
_ONLY_FORMAT = "the only library with this format; the update goes over slices"
LIBRARIES = {
    "adamw8bit": ("bitsandbytes", _ONE_KERNEL),
    PAGED: ("bitsandbytes", "its pages move to the host when the card is full"),
    "adamw4bit": ("torchao", _ONLY_FORMAT),
    "adamwfp8": ("torchao", _ONLY_FORMAT),
}
"""Optimizer -> the library it runs on, and why."""


def _module_of(name: str) -> Any:
    library = LIBRARIES[name][0]
    return library_module(name, library, f"snugfit.techniques.low_bit_optimizer.{library}")


class LowBitAdamW(OwnOptimizer):
    """How AdamW with low-bit state is built."""

    def load(self) -> None:
        """Imports the library and makes its tables of values."""
        _module_of(self.name).lookup_tables()

    def announce(self, device: torch.device) -> None:
        """Says which library holds the state, and that nothing is paged on cpu."""
        if self.name == PAGED:
            announce_pages(self.name, device, runs_as="adamw8bit")
        else:
            library, why = LIBRARIES[self.name]
            note(f"optimizer {self.name} runs on {library}: {why}.")

    def parted(self, model: nn.Module) -> Parting:
        """Returns the embeddings, whose state stays in full precision."""
        return embedding_weights(model), {FULL_PRECISION: True}, {FULL_PRECISION: False}

    def make(self, groups: Groups, device: torch.device, settings: Settings, kernels: Settings) -> Optimizer:
        """Builds it; the kernels are the library's."""
        return low_bit_optimizer(self.name, groups, device, **settings)


def low_bit_optimizer(name: str, groups: Groups, device: torch.device, **settings: Any) -> Optimizer:
    """Builds AdamW with low-bit state, which appears at the first step; groups may be marked `full_precision`."""
    module = _module_of(name)
    marked = [{STORAGE: name.removeprefix("paged-"), FULL_PRECISION: False, **group} for group in groups]
    made: Optimizer = module.build(name, marked, device, settings)
    return made
