"""Calls when the gradient of a parameter is complete."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


def when_gradient_is_complete(weight: nn.Parameter, update: Callable[[], None]) -> RemovableHandle:
    """Calls a function as soon as a backward pass has finished a parameter's gradient.

    Args:
        weight: The parameter; one that is used in several places is finished once, by the sum.
        update: Called without arguments; `weight.grad` is set.

    Returns:
        The handle that removes the hook.
    """

    def hook(_: Tensor) -> None:
        update()

    handle: RemovableHandle = weight.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    return handle
