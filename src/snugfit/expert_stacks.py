"""Experts whose matrices are stacked in parameters of three dimensions, found by structure and never by the model's name.

The first dimension is the number of experts that the module itself states. Transformers holds all its mixtures so
(Mixtral, Qwen, DeepSeek, gpt-oss, ...), as [experts, outputs, inputs] or [experts, inputs, outputs].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def is_stack(module: torch.nn.Module, weight: Any) -> bool:
    """Returns whether a module's tensor holds the matrices of all its experts.

    `weight`: a parameter of it, or what stands in its place; None is none.
    """
    stated = {getattr(module, name, None) for name in ("num_experts", "num_local_experts")} - {None}
    return weight is not None and len(weight.shape) == 3 and weight.shape[0] in stated


def stacks_of(module: torch.nn.Module) -> list[str]:
    """Returns the names of a module's parameters that hold the matrices of all its experts."""
    return [name for name, weight in module._parameters.items() if is_stack(module, weight)]
