"""The gradients of a step, and the learning rates that hold while it lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.techniques.accumulate_dtype.apply import Fp32Sums
from snugfit.training.health import global_norm
from snugfit.workload import Workload


class Gradients:
    """The gradients of a step, wherever they add up: their norm, clipping, and whether they are finite."""

    def __init__(self, named: dict[str, nn.Parameter], sums: Fp32Sums | None, workload: Workload) -> None:
        """Takes note of the parameters.

        Args:
            named: Name -> parameter, what training changes.
            sums: Where gradients add up in fp32, or None.
            workload: Its `clip_norm` and `keep_gradients`.
        """
        self.named = named
        self.sums = sums
        self.clip_norm = workload.clip_norm
        self.keep = workload.keep_gradients
        self.own = False
        """Whether a backward pass of the step itself is under way."""

    @contextmanager
    def own_backward(self) -> Iterator[None]:
        """Context of a backward pass of the step; in any other one its hooks do nothing."""
        self._mark(True)
        try:
            yield
        finally:
            self._mark(False)

    def _mark(self, own: bool) -> None:
        self.own = own
        if self.sums:
            self.sums.active = own

    def present(self) -> dict[str, Tensor]:
        """Returns the gradients there are, by parameter name."""
        found = {name: self.sums.of(weight) if self.sums else weight.grad for name, weight in self.named.items()}
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
        if self.sums:
            self.sums.settle()

    def release(self) -> None:
        """Takes the hooks off the parameters."""
        if self.sums:
            self.sums.release()

    def used(self) -> None:
        """Frees the gradients of an update that is done, unless they are to stay for whoever logs them."""
        if not self.keep:
            self.drop()

    def drop(self) -> None:
        """Frees all gradients."""
        if self.sums:
            self.sums.drop()
        for weight in self.named.values():
            weight.grad = None


class ScheduledRates:
    """The learning rates of a step: each group's own, times the schedule's factor until the step ends."""

    def __init__(self) -> None:
        """Has multiplied nothing yet."""
        self._own: list[tuple[dict[str, Any], Any]] = []

    def multiply(self, groups: list[dict[str, Any]], factor: float) -> None:
        """Puts a factor on.

        Args:
            groups: Parameter groups.
            factor: 1 leaves them alone.
        """
        self.restore()
        if factor != 1.0:
            self._own = [(group, group["lr"]) for group in groups]
            for group, rate in self._own:
                group["lr"] = rate * factor

    def restore(self) -> None:
        """Takes the factor off."""
        for group, rate in self._own:
            group["lr"] = rate
        self._own.clear()
