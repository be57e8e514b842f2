"""The models that an optimizer trains, found among all objects there are: nobody introduces those of a script."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
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


def left_out(models: Iterable[torch.nn.Module], trained: set[int]) -> int:
    """Returns how many weights of models want gradients and are in no optimizer; `trained`: identities of those that are."""
    return len({id(weight) for one in models for weight in one.parameters() if weight.requires_grad} - trained)


def run_with(statements: Sequence[str], optimizer: Any) -> None:
    """Runs statements with each model that an optimizer was made for, by the name of `model`."""
    for model in trained_models(optimizer):
        exec("import snugfit, torch, torch.utils.checkpoint, functools\n" + "\n".join(statements), {"model": model})
