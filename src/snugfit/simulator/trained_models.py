"""The models that an optimizer trains, found among all objects there are: nobody introduces those of a script."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def weights_of_module(module: torch.nn.Module) -> set[int]:
    """Returns the identities of a module's weights."""
    return {id(weight) for weight in module.parameters()}


def trained_models(optimizer: Any) -> list[torch.nn.Module]:
    """Returns the outermost modules that hold any of an optimizer's weights."""
    import torch

    trained = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    alive = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]
    modules = [one for one in alive if weights_of_module(one) & trained]
    inside = {id(part) for one in modules for part in one.modules() if part is not one}
    return [one for one in modules if id(one) not in inside]
