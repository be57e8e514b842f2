"""A piece of user code: a model, a batch, and how the one meets the other, as somebody would give them to snugfit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What `snugfit.estimate`, `plan` and `prepare` get, and what a plain loop needs."""

    name: str
    """Short, unique."""
    style: str
    """What is special about the code, in a few words."""
    build: Callable[[], nn.Module]
    """Makes the model, on cpu."""
    batch: Callable[[], Any]
    """Makes a batch of tensors on cpu, labels in their range."""
    loss: Callable[[Any, Any], Tensor] | None = None
    """Function of (output, batch); None where the model returns its loss."""
    forward: Callable[[nn.Module, Any], Any] | None = None
    """Function of (model, batch); None for the usual ways."""
    optimizer: Any = "adamw"
    """A name, or a function from parameters to an optimizer."""
    loss_weight: str = "samples"
    """How the losses of microbatches would combine, where they do."""
    sums_over_samples: bool = True
    """Whether the loss is a sum or mean of losses of single samples, so that microbatches give the same gradients."""
    assume: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Assumptions that the simulation needs to be told, for code that selects by values."""

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments that `estimate`, `plan` and `prepare` have in common."""
        return {
            "loss": self.loss,
            "forward": self.forward,
            "optimizer": self.optimizer,
            "loss_weight": self.loss_weight,
        }

    def plain_loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Returns the loss of a batch as a plain loop computes it."""
        if self.forward is not None:
            output = self.forward(model, batch)
        elif isinstance(batch, Mapping):
            output = model(**batch)
        else:
            output = model(batch[0] if isinstance(batch, tuple | list) else batch)
        if self.loss is not None:
            return self.loss(output, batch)
        found: Tensor = output if isinstance(output, Tensor) else output["loss"]
        return found


def images(samples: int, side: int = 32, channels: int = 3) -> Tensor:
    """Returns random images."""
    return torch.rand(samples, channels, side, side)
