"""Models that go to another device while somebody else holds their weights, or with hooks on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from snugfit.attributes import replaced

_swap: Callable[[torch.Tensor, torch.Tensor], None] = torch.utils.swap_tensors


def moves() -> list[tuple[Any, str, Any]]:
    """Returns the replacement by which a model goes to another device as one of real weights does.

    Torch exchanges fake weights with others; of real ones it sets `.data`. Their hooks would stay with what they were. And
    it does not exchange weights that somebody else holds: a graph (an output that is kept), DDP. Those keep what it was.
    """
    apply = torch.nn.Module._apply

    def applied(module: torch.nn.Module, move: Any, *args: Any, **kwargs: Any) -> torch.nn.Module:
        with replaced([(torch.utils, "swap_tensors", exchange)]):
            moved: torch.nn.Module = apply(module, move, *args, **kwargs)  # type: ignore[no-untyped-call]
        for weight in module._parameters.values():
            if weight is not None:
                _hook_again(weight)
        return moved

    return [(torch.nn.Module, "_apply", applied)]


def exchange(one: torch.Tensor, other: torch.Tensor) -> None:
    """Exchanges two tensors as torch does, but for those with slots (DTensor) also where somebody else holds them."""
    try:
        _swap(one, other)
    except RuntimeError:
        if getattr(type(one), "__slots__", ()):
            raise
        one.__class__, other.__class__ = other.__class__, one.__class__
        one.__dict__, other.__dict__ = other.__dict__, one.__dict__
        torch._C._swap_tensor_impl(one, other)


def _hook_again(weight: Any) -> None:
    """Lets torch call the hooks that a weight names: to set them tells what is behind the Python object."""
    for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if hooks := getattr(weight, kind):
            setattr(weight, kind, hooks)
