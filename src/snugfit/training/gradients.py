"""The gradients of a step, of which those of 16-bit weights may add up in fp32, by hooks (`techniques/accumulate_dtype`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from snugfit.techniques.shard.ranks import Ranks
from snugfit.training.health import global_norm
from snugfit.workload import Workload

if TYPE_CHECKING:
    from snugfit.techniques.shard.reducer import Reducer


class Gradients:
    """The gradients of a step: where they add up, their norm, clipping, and whether they are finite."""

    def __init__(
        self,
        named: dict[str, nn.Parameter],
        workload: Workload,
        *,
        summed: Iterable[nn.Parameter],
        ranks: Ranks | None = None,
        reducer: Reducer | None = None,
    ) -> None:
        """Notes the parameters that training changes, by name.

        `summed`: those whose gradients add up in fp32.
        `ranks`: the processes that share them out, or None.
        `reducer`: gives them what those have together, or None.
        """
        self.named = named
        self.clip_norm = workload.clip_norm
        self.keep = workload.keep_gradients
        self.ranks, self.reducer = ranks, reducer
        self.own = False
        """Whether a backward pass of the step itself is under way; one of anybody else's leaves its gradients in `grad`."""
        self._sums: dict[nn.Parameter, Tensor] = {}
        self._hooks: list[RemovableHandle] = [
            weight.register_post_accumulate_grad_hook(self._add)  # type: ignore[no-untyped-call]
            for weight in summed
        ]

    def _add(self, weight: Tensor) -> None:
        if not self.own:
            return
        assert isinstance(weight, nn.Parameter) and weight.grad is not None
        if weight in self._sums:
            self._sums[weight].add_(weight.grad)
        else:
            self._sums[weight] = weight.grad.float()
        weight.grad = None

    @contextmanager
    def own_backward(self) -> Iterator[None]:
        """Context of the step's own backward pass; in anybody else's the hooks do nothing."""
        self.own = True
        try:
            with nullcontext() if self.reducer is None else self.reducer.own_pass():
                yield
        finally:
            self.own = False

    def present(self) -> dict[str, Tensor]:
        """Returns the gradients there are, by parameter name."""
        found = {name: self._sums.get(weight, weight.grad) for name, weight in self.named.items()}
        return {name: gradient for name, gradient in found.items() if gradient is not None}

    def clip(self) -> Tensor:
        """Clips to the workload's norm and returns a 0-dim tensor that is finite exactly when all gradients are."""
        present = self.present()
        if not present:
            return torch.zeros((), device=next(iter(self.named.values())).device)
        if self.clip_norm is None:
            self.settle()  # a sum that fp32 holds may overflow in fp16, so it is judged in its final dtype
            return self.norm(self.present())
        norm = self.norm(present)
        factor = (self.clip_norm / (norm + 1e-6)).clamp(max=1.0)  # torch.nn.utils.clip_grad_norm_ uses the same 1e-6
        torch._foreach_mul_(list(present.values()), factor)
        return norm

    def norm(self, gradients: dict[str, Tensor]) -> Tensor:
        """Returns the 2-norm of gradients by name, with the parts and shares that other processes hold."""
        if self.ranks is None or self.reducer is None:
            return global_norm(list(gradients.values()))
        beside = self.reducer.beside()
        shared_out: list[Tensor] = []
        cut: list[Tensor] = []
        whole: list[Tensor] = []
        for name, gradient in gradients.items():
            part = cut if name in self.ranks.cut else whole if self.named[name] in beside else shared_out
            part.append(gradient)
        zero = next(iter(gradients.values())).new_zeros(())
        norms = [global_norm(part) if part else None for part in (shared_out, cut, whole)]
        return self.ranks.norm(zero if norms[0] is None else norms[0], *norms[1:])

    def settle(self) -> None:
        """Leaves every gradient in `grad`, in its parameter's dtype; fp32 sums are rounded one parameter at a time."""
        while self._sums:
            weight, total = self._sums.popitem()
            weight.grad = total.to(weight.dtype)

    def release(self) -> None:
        """Takes the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()

    def used(self) -> None:
        """Frees the gradients of an update that is done, unless they are to stay for whoever logs them."""
        if not self.keep:
            self.drop()
        elif self.reducer is not None:
            self.reducer.show()

    def drop(self) -> None:
        """Frees all gradients."""
        self._sums.clear()
        for weight in self.named.values():
            weight.grad = None
        if self.reducer is not None:
            self.reducer.drop()
