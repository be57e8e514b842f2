"""Models that go to another device while somebody else holds their weights, or with hooks on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def moves(trained: Callable[[], bool]) -> list[tuple[Any, str, Any]]:
    """Returns the replacement by which a model goes to another device as one of real weights does.

    Torch exchanges fake weights with others; of real ones it sets `.data`. Their hooks would stay with what they were. And
    it does not exchange weights that somebody else holds, as DDP does: behind the training (`trained`) the model gets
    weights of its own instead, as nobody else uses them any more.
    """
    apply = torch.nn.Module._apply

    def applied(module: torch.nn.Module, move: Any, *args: Any, **kwargs: Any) -> torch.nn.Module:
        try:
            moved: torch.nn.Module = apply(module, move, *args, **kwargs)  # type: ignore[no-untyped-call]
            for weight in module._parameters.values():
                if weight is not None:
                    _hook_again(weight)
            return moved
        except RuntimeError as error:
            if "Couldn't swap" not in str(error):
                raise
            computed = [name for name, one in vars(module).items() if getattr(one, "grad_fn", None) is not None]
            if not computed and not trained():
                raise
        for name in computed:  # by weight_norm, say, of the weights: computed again before the layer is used
            vars(module)[name] = vars(module)[name].detach()
        if computed:
            return applied(module, move, *args, **kwargs)
        own = {name: weight for name, weight in module._parameters.items() if weight is not None}
        for name, weight in own.items():
            module._parameters[name] = torch.nn.Parameter(move(weight.detach()), weight.requires_grad)
        return module

    return [(torch.nn.Module, "_apply", applied)]


def _hook_again(weight: Any) -> None:
    """Lets torch call the hooks that a weight names: to set them tells what is behind the Python object."""
    for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if hooks := getattr(weight, kind):
            setattr(weight, kind, hooks)
