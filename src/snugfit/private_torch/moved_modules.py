"""Models that go to another device while somebody else holds their weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def moves(trained: Callable[[], bool]) -> list[tuple[Any, str, Any]]:
    """Returns the replacement by which a model goes to another device whose weights somebody else holds, as DDP does.

    Torch exchanges fake weights with others, which that bars; of real ones it sets `.data`. Behind the training (`trained`)
    the model gets weights of its own instead: nobody else uses them any more.
    """
    apply = torch.nn.Module._apply

    def applied(module: torch.nn.Module, move: Any, *args: Any, **kwargs: Any) -> torch.nn.Module:
        try:
            moved: torch.nn.Module = apply(module, move, *args, **kwargs)  # type: ignore[no-untyped-call]
            return moved
        except RuntimeError as error:
            if not trained() or "Couldn't swap" not in str(error):
                raise
        own = {name: weight for name, weight in module._parameters.items() if weight is not None}
        for name, weight in own.items():
            module._parameters[name] = torch.nn.Parameter(move(weight.detach()), weight.requires_grad)
        return module

    return [(torch.nn.Module, "_apply", applied)]
