"""In-place activations: an activation function writes over its input instead of beside it.

Saves one copy of each such input, which is much of a CNN's activations (torchvision's own CNNs already do it). Costs
nothing. Only functions whose backward needs their output or a mask, not their input, gain: ReLU, LeakyReLU, ELU and Dropout.

Wrong when another operator still needs the old values: a skip connection that branches off before the activation would
silently read overwritten numbers. So a module is changed only where the model's structure proves that nobody else looks:
its only input comes straight from a linear, convolution or norm layer, none of which needs its own output for backward,
and goes nowhere else. The proof is a symbolic trace of the model, or, where the model cannot be traced, its place in a
`Sequential` right behind such a layer.

Fidelity: exact. Source: the guide's list of eleven; torch.fx.
"""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import torch.fx
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from snugfit.errors import SnugfitWarning
from snugfit.techniques.base import ModelTechnique

GAINING = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.Dropout, nn.Dropout2d, nn.Dropout3d)
"""Functions whose in-place form keeps nothing but their output or a mask."""
_PRODUCERS = (nn.Linear, _ConvNd, _NormBase, nn.GroupNorm, nn.LayerNorm)
"""Layers whose backward does not read their output."""


class InPlace(ModelTechnique):
    """Switches activation modules to their in-place form where that is proved safe."""

    field = "inplace"

    def change(self, model: nn.Module) -> None:
        """Switches the modules; warns when there is none."""
        safe = safe_modules(model)
        for module in safe:
            module.inplace = True
        if not safe:
            warnings.warn(
                f"inplace has no effect on {type(model).__name__}: no ReLU, LeakyReLU, ELU or Dropout module stands alone "
                "behind a linear, convolution or norm layer (or all are in place already).",
                SnugfitWarning,
                stacklevel=2,
            )


def safe_modules(model: nn.Module) -> list[Any]:
    """Returns the activation modules that may overwrite their input and do not yet.

    Args:
        model: Any module.

    Returns:
        The modules, each once.
    """
    candidates = [module for module in model.modules() if type(module) in GAINING and not module.inplace]
    if not candidates:
        return []
    try:
        graph = torch.fx.Tracer().trace(model)
    except Exception:  # anything a user's forward may raise on symbolic values
        return [module for module in candidates if module in _behind_producers(model)]
    verdicts: dict[nn.Module, bool] = {}
    modules = dict(model.named_modules())
    for node in graph.nodes:
        if node.op == "call_module" and modules[str(node.target)] in candidates:
            source = node.args[0] if node.args else None
            alone = isinstance(source, torch.fx.Node) and len(source.users) == 1 and source.op == "call_module"
            safe = alone and isinstance(modules[str(source.target)], _PRODUCERS)  # type: ignore[union-attr]
            module = modules[str(node.target)]
            verdicts[module] = verdicts.get(module, True) and safe
    return [module for module, safe in verdicts.items() if safe]


def _behind_producers(model: nn.Module) -> set[nn.Module]:
    """Elements of a `Sequential` that follow a producer, and stand nowhere else in the model."""
    places: dict[nn.Module, int] = {}
    for module in model.modules():
        for child in module._modules.values():
            if child is not None:
                places[child] = places.get(child, 0) + 1
    found = set()
    for module in model.modules():
        if type(module) is nn.Sequential:
            elements = list(module)
            for before, after in pairwise(elements):
                if isinstance(before, _PRODUCERS) and places[after] == 1 and places[before] == 1:
                    found.add(after)
    return found
