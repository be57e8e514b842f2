"""Muon for a model's matrices and AdamW for the rest, as one optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from snugfit.techniques.linear_layers import embedding_weights, head_weights
from snugfit.techniques.own_optimizer import Groups, OwnOptimizer, Parting, Settings, parted_groups

ALGORITHM = "algorithm"
"""Key of a parameter group: muon or adamw."""
_MARKS = {ALGORITHM: "muon"}, {ALGORITHM: "adamw"}


def muon_weights(model: nn.Module) -> set[nn.Parameter]:
    """Returns the matrices that Muon updates.

    All two-dimensional parameters, except embeddings and the output head.
    """
    others = embedding_weights(model) | head_weights(model)
    return {weight for weight in model.parameters() if weight.dim() == 2 and weight not in others}


class MuonWithAdamW(Optimizer):
    """`torch.optim.Muon` and `torch.optim.AdamW` over groups of their own, as one optimizer."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        *,
        kernels: Mapping[str, bool] | None = None,
    ) -> None:
        """Splits the groups between the two algorithms; `lr` serves both.

        `params`: parameters or groups; a group says `algorithm`, and one that does not is parted by dimension.
        `weight_decay`: decay of both; None: torch's own for each.
        `kernels`: adamW's `fused` or `foreach`.
        """
        decay = {} if weight_decay is None else {"weight_decay": weight_decay}
        settings: dict[str, Any] = {"betas": betas, **(kernels or {})}
        self._make: dict[str, Callable[..., Optimizer]] = {
            "muon": functools.partial(Muon, adjust_lr_fn="match_rms_adamw"),
            "adamw": functools.partial(AdamW, **settings),
        }
        self._parts: dict[str, Optimizer] = {}
        super().__init__(params, {"lr": lr, **decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group; one that does not name its `algorithm` is split in two where it has parameters of both kinds."""
        for group in _parted([param_group]):
            super().add_param_group(group)
            name = group[ALGORITHM]
            if name in self._parts:
                self._parts[name].add_param_group(group)
            else:
                self._parts[name] = self._make[name]([group])

    @property
    def parts(self) -> tuple[Optimizer, ...]:
        """The two optimizers, in the order in which they step; they work on this very groups and state."""
        parts = {name: self._parts[name] for name in self._make if name in self._parts}
        for name, part in parts.items():
            part.param_groups = [group for group in self.param_groups if group[ALGORITHM] == name]
            part.state = self.state
        return tuple(part for part in parts.values() if part.param_groups)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Updates every parameter that has a gradient."""
        assert closure is None
        for part in self.parts:
            part.step()


def _parted(groups: Groups) -> Groups:
    parted: Groups = []
    for group in groups:
        given = group["params"]
        weights: list[Any] = [given] if isinstance(given, torch.Tensor) else list(given)
        matrices: set[nn.Parameter] = {weight for weight in weights if weight.dim() == 2}
        one = {**group, "params": weights}
        parted += [one] if ALGORITHM in group else parted_groups([one], (matrices, *_MARKS))
    return parted


class MuonOptimizer(OwnOptimizer):
    """How it is built."""

    cls = MuonWithAdamW

    def parted(self, model: nn.Module) -> Parting:
        """Returns Muon's matrices; the rest is AdamW's."""
        return muon_weights(model), *_MARKS

    def make(self, groups: Groups, device: torch.device, settings: Settings, kernels: Settings) -> Optimizer:
        """Builds it; AdamW's part takes the kernels."""
        return MuonWithAdamW(groups, **settings, kernels=kernels)
