"""What stands around tensors: the wrappers of `torch.func` (grad, vmap, jvp), and tensors that are made of others."""

from __future__ import annotations

import torch

from snugfit.private_torch.sparse_layouts import parts_of


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor inside all wrappers of `torch.func`, which have no storage; any other tensor as it is."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def parts_inside(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns the tensors that one is made of, as a quantised one is of codes and scales; any other tensor alone."""
    tensor = unwrapped(tensor)
    if not hasattr(tensor, "__tensor_flatten__"):
        return parts_of(tensor)
    inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    return [part for one in inner if isinstance(one, torch.Tensor) for part in parts_inside(one)]
