"""What the transforms of `torch.func` (grad, vmap, jvp) put around tensors."""

from __future__ import annotations

import torch


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor inside all wrappers of `torch.func`, which have no storage; any other tensor as it is."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor
