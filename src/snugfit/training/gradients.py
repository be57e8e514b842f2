"""The gradients of a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from snugfit.techniques.accumulate_dtype.apply import Fp32Sums
from snugfit.training.health import global_norm
from snugfit.workload import Workload


class Gradients:
    """The gradients of a step, wherever they add up: their norm, clipping, and whether they are finite."""

    def __init__(self, named: dict[str, nn.Parameter], sums: Fp32Sums, workload: Workload) -> None:
        """Takes note of the parameters.

        Args:
            named: Name -> parameter, what training changes.
            sums: Where gradients add up in fp32, those that do.
            workload: Its `clip_norm` and `keep_gradients`.
        """
        self.named = named
        self.sums = sums
        self.clip_norm = workload.clip_norm
        self.keep = workload.keep_gradients

    @property
    def own(self) -> bool:
        """Whether a backward pass of the step itself is under way."""
        return self.sums.active

    @contextmanager
    def own_backward(self) -> Iterator[None]:
        """Context of a backward pass of the step; in any other one its hooks do nothing."""
        self.sums.active = True
        try:
            yield
        finally:
            self.sums.active = False

    def present(self) -> dict[str, Tensor]:
        """Returns the gradients there are, by parameter name."""
        found = {name: self.sums.of(weight) for name, weight in self.named.items()}
        return {name: gradient for name, gradient in found.items() if gradient is not None}

    def clip(self) -> Tensor:
        """Clips to the workload's norm and returns a 0-dim tensor that is finite exactly when all gradients are."""
        present = list(self.present().values())
        if not present:
            return torch.zeros((), device=next(iter(self.named.values())).device)
        if self.clip_norm is None:
            self.settle()  # a sum that fp32 holds may overflow in fp16, so it is judged in its final dtype
            return global_norm(list(self.present().values()))
        norm = global_norm(present)
        factor = (self.clip_norm / (norm + 1e-6)).clamp(max=1.0)  # torch.nn.utils.clip_grad_norm_ uses the same 1e-6
        torch._foreach_mul_(present, factor)
        return norm

    def settle(self) -> None:
        """Leaves every gradient in `grad`, in its parameter's dtype."""
        self.sums.settle()

    def release(self) -> None:
        """Takes the hooks off the parameters."""
        self.sums.release()

    def used(self) -> None:
        """Frees the gradients of an update that is done, unless they are to stay for whoever logs them."""
        if not self.keep:
            self.drop()

    def drop(self) -> None:
        """Frees all gradients."""
        self.sums.drop()
        for weight in self.named.values():
            weight.grad = None
