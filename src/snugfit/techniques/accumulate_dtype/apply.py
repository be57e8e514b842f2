"""Gradients of 16-bit weights, summed in fp32 by hooks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class Fp32Sums:
    """Gradients of 16-bit parameters, summed in fp32 by hooks."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        """Puts a hook on every 16-bit parameter.

        Args:
            parameters: What training changes; none where all gradients add up as they are.
        """
        self._sums: dict[nn.Parameter, Tensor] = {}
        self.active = False
        """Whether a backward pass of the step is under way; one of anybody else's leaves its gradients in `grad`."""
        self._hooks: list[RemovableHandle] = []
        for weight in parameters:
            if weight.dtype in (torch.float16, torch.bfloat16):
                self._hooks.append(weight.register_post_accumulate_grad_hook(self._add))  # type: ignore[no-untyped-call]

    def _add(self, weight: Tensor) -> None:
        if not self.active:
            return
        assert isinstance(weight, nn.Parameter) and weight.grad is not None
        if weight in self._sums:
            self._sums[weight].add_(weight.grad)
        else:
            self._sums[weight] = weight.grad.float()
        weight.grad = None

    def of(self, weight: nn.Parameter) -> Tensor | None:
        """Returns a parameter's gradient: its fp32 sum, or `grad` where it has none.

        Args:
            weight: The parameter.

        Returns:
            The gradient, or None.
        """
        return self._sums.get(weight, weight.grad) if self._sums else weight.grad

    def settle(self) -> None:
        """Rounds the sums into `grad`, one parameter at a time, and drops them."""
        while self._sums:
            weight, total = self._sums.popitem()
            weight.grad = total.to(weight.dtype)

    def release(self) -> None:
        """Takes the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()

    def drop(self) -> None:
        """Forgets the sums of a step that is not taken."""
        self._sums.clear()
