"""Muon for a model's matrices and AdamW for the rest, as one optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

    Args:
        model: Any module.

    Returns:
        Its two-dimensional parameters, embeddings and the output head left out.
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
        """Parts the groups.

        Args:
            params: Parameters or groups; a group says `algorithm`, and one that does not is parted by dimension.
            lr: Learning rate of both.
            weight_decay: Decay of both; None: torch's own for each.
            betas: AdamW's two decay rates.
            kernels: AdamW's `fused` or `foreach`.
        """
        decay = {} if weight_decay is None else {"weight_decay": weight_decay}
        super().__init__(_parted(params), {"lr": lr, **decay})
        groups = {
            name: [group for group in self.param_groups if group[ALGORITHM] == name] for name in ("muon", "adamw")
        }
        self._parts: dict[str, Optimizer] = {}
        if groups["muon"]:
            self._parts["muon"] = Muon(groups["muon"], adjust_lr_fn="match_rms_adamw")
        if groups["adamw"]:
            self._parts["adamw"] = AdamW(groups["adamw"], betas=betas, **(kernels or {}))

    @property
    def parts(self) -> tuple[Optimizer, ...]:
        """The optimizers this one consists of, in the order in which they step: on its very groups and state."""
        for name, part in self._parts.items():
            part.param_groups = [group for group in self.param_groups if group[ALGORITHM] == name]
            part.state = self.state
        return tuple(part for part in self._parts.values() if part.param_groups)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Updates every parameter that has a gradient.

        Args:
            closure: Not supported.
        """
        assert closure is None
        for part in self.parts:
            part.step()


def _parted(params: Iterable[Any]) -> Groups:
    given = list(params)
    groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    parted: Groups = []
    for group in ({**group, "params": list(group["params"])} for group in groups):
        matrices = {weight for weight in group["params"] if weight.dim() == 2}
        parted += [group] if ALGORITHM in group else parted_groups([group], (matrices, *_MARKS))
    return parted


class MuonOptimizer(OwnOptimizer):
    """How it is built."""

    cls = MuonWithAdamW

    def parted(self, model: nn.Module) -> Parting:
        """Returns its matrices."""
        return muon_weights(model), *_MARKS

    def make(self, groups: Groups, device: torch.device, settings: Settings, kernels: Settings) -> Optimizer:
        """Builds it; AdamW's part takes the kernels."""
        return MuonWithAdamW(groups, **settings, kernels=kernels)
