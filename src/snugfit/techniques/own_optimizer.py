"""The contract of optimizers that torch.optim does not have as they are; each overrides what it needs."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from snugfit.library_imports import needed
from snugfit.techniques import OPTIMIZER_NAMES
from snugfit.techniques.declaration import loaded

Groups = list[dict[str, Any]]
Settings = dict[str, Any]
Parting = tuple[set[nn.Parameter], dict[str, Any], dict[str, Any]]
"""Parameters to treat differently, the mark of their groups, and the mark of all other groups."""


STORAGE = "storage"
"""Key of a parameter group: the name of the optimizer that holds its state in a way of its own."""


class OwnOptimizer:
    """How an optimizer is built; its declaration names the class."""

    cls: ClassVar[type[Optimizer] | None] = None
    """Where it is an algorithm of its own, the class."""

    def __init__(self, name: str) -> None:
        """Takes its name in a recipe."""
        self.name = name

    def load(self) -> None:
        """Imports its library and makes its tables, outside of any simulation; `InputError` where it is not installed."""

    def announce(self, device: torch.device) -> None:
        """Says which library it runs on, and what a device cannot do; once a run."""

    def parted(self, model: nn.Module) -> Parting | None:
        """Returns the parameters that it treats differently from the others; None: none."""
        return None

    def make(self, groups: Groups, device: torch.device, settings: Settings, kernels: Settings) -> Optimizer:
        """Builds the optimizer; state appears at its first step.

        `groups`: parameter groups, marked as `parted` says.
        `kernels`: `fused` or `foreach` of an AdamW here.
        """
        raise NotImplementedError


def own_optimizer(name: str | None) -> OwnOptimizer | None:
    """Returns how an optimizer is built; None where torch.optim has it, or the name is none of ours."""
    named = OPTIMIZER_NAMES.get(name or "")
    return loaded(named.built_by)(named.name) if named is not None and named.built_by else None


def parted_groups(groups: Groups, parting: Parting) -> Groups:
    """Returns the groups, each split in two where it has parameters of both kinds."""
    chosen, mark, other = parting
    parted: Groups = []
    for group in groups:
        for marks, inside in ((mark, True), (other, False)):
            weights = [weight for weight in group["params"] if (weight in chosen) is inside]
            if weights:
                parted.append({**group, **marks, "params": weights})
    return parted


def library_module(optimizer: str, library: str, module: str) -> Any:
    """Imports a module that needs a library with an optimizer in it; InputError where the library is missing."""
    instead = ", or use adamw or adafactor."
    return needed(f"optimizer {optimizer!r} needs", module, library=library, install="snugfit[lowbit]", instead=instead)
