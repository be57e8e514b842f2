"""Updates of bf16 weights that are computed in fp32 and rounded at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from snugfit.techniques.own_optimizer import STORAGE
from snugfit.techniques.parameter_update import ParameterUpdate, Settings

if TYPE_CHECKING:
    from snugfit.techniques.base import Setup


def round_stochastically(values: Tensor, generator: torch.Generator | None) -> Tensor:
    """Rounds a float32 tensor to bfloat16, up or down at random so that the mean is exact."""
    values = values.contiguous()
    rounded = torch.empty_like(values, dtype=torch.bfloat16)  # before the draw: where memory is short, nothing is drawn
    bits = torch.randint(0, 1 << 16, values.shape, dtype=torch.int32, device=values.device, generator=generator)
    bits.add_(values.view(torch.int32)).bitwise_and_(-(1 << 16))
    return rounded.copy_(bits.view(torch.float32))


class RoundedUpdate(ParameterUpdate):
    """Bf16 parameters, updated in fp32; they and their state are rounded at random, unless the state is packed.

    Small ones go together, up to half as many numbers as the largest parameter has: each operator costs the host as long for
    a norm's weights as for a matrix.
    """

    def __init__(self, optimizer: Optimizer, weights: Sequence[nn.Parameter], number: int, setup: Setup) -> None:
        """Takes the parameters, and the source of random bits."""
        super().__init__(optimizer, weights, number)
        self._generator = setup.generator
        self._packed = STORAGE in self.groups[0]

    @classmethod
    def together(cls, weights: Sequence[nn.Parameter], group: Settings, setup: Setup) -> list[list[nn.Parameter]]:
        """Returns the parameters of a group that are updated together."""
        if setup.recipe.step_in_backward or setup.ranks is not None or STORAGE in group:
            return [[weight] for weight in weights]
        most = max((weight.numel() for weight in weights), default=0) // 2
        found, small, numbers = list[list[nn.Parameter]](), list[nn.Parameter](), 0
        for weight in weights:
            if (
                weight.numel() > most or weight.dtype != torch.bfloat16 or not weight.dim()
            ):  # numbers alone are not rounded
                found.append([weight])
                continue
            if numbers + weight.numel() > most:
                found.append(small)
                small, numbers = [], 0
            small.append(weight)
            numbers += weight.numel()
        return [*found, small] if small else found

    def make_state(self) -> None:
        """Does nothing: the state belongs to fp32 stand-ins, and is made before a weight changes."""

    def at_once(self, bad: Tensor | None) -> bool:
        """Returns False: numbers are rounded one tensor after the other."""
        return False

    def step(self, bad: Tensor | None) -> None:
        """Updates the parameters from their `grad`.

        `bad`: 0-dim float32 flag on the device: 1 leaves everything alone; None: the step is known to be good.
        """
        if self.weight.dtype != torch.bfloat16:  # beside the model, which alone was cast: a learned part of the loss
            super().step(bad)
            return
        if bad is not None:
            bad = bad.to(self.weight.device)  # shares that are kept on the host are updated there
        if self._packed and bad is not None:  # packed state changes in place, so the host decides
            if bool(bad.bool()):
                return
            bad = None
        moved = [weight for weight in self.weights if weight.grad is not None]
        states = self.optimizer.state
        for began in (True, False):  # one whose first gradient comes late has no state yet
            weights = [weight for weight in moved if bool(states.get(weight)) is began]
            if weights:
                self._step_of(weights, bad)

    def _step_of(self, weights: list[nn.Parameter], bad: Tensor | None) -> None:
        gradients = [weight.grad.float() for weight in weights if weight.grad is not None]
        for weight in weights:
            weight.grad = None
        new, states = self._updated_in_fp32(weights, gradients)
        del gradients  # rounding needs room of its own
        with torch.no_grad():
            self._take(list(weights), new, list(weights), bad)
            del new
            kept = [self.optimizer.state.get(weight, {}) for weight in weights]
            rounded: list[dict[str, Any]] = [{} for _ in weights]
            for name in dict.fromkeys(name for state in states for name in state):
                # Some have other state than their neighbours, as matrices by Adafactor.
                having = [number for number, state in enumerate(states) if name in state]
                values = [states[number].pop(name) for number in having]
                if not self._packed and all(isinstance(value, Tensor) for value in values):
                    old = [kept[number][name] for number in having] if kept[0] else None
                    values = self._take(old, values, None, bad)
                for number, value in zip(having, values, strict=True):
                    rounded[number][name] = value
        for weight, state in zip(weights, rounded, strict=True):
            self.optimizer.state[weight] = state

    def _updated_in_fp32(
        self, weights: list[nn.Parameter], gradients: list[Tensor]
    ) -> tuple[list[Tensor], list[dict[str, Any]]]:
        """Returns the updated weights and their state, by way of fp32 stand-ins that exist during the step only."""
        standins = [nn.Parameter(weight.detach().float()) for weight in weights]
        states = self.optimizer.state
        try:
            for weight, standin, gradient in zip(weights, standins, gradients, strict=True):
                standin.grad = gradient
                if states.get(weight):
                    states[standin] = {name: self._wide(value) for name, value in states[weight].items()}
            with self.alone(standins):
                self.optimizer.step()
        finally:
            found = [states.pop(standin, {}) for standin in standins]
        return [standin.detach() for standin in standins], found

    def _take(
        self, old: list[Any] | None, new: list[Tensor], into: list[Any] | None, bad: Tensor | None
    ) -> list[Tensor]:
        """Rounds new values and returns them, in new tensors or `into` some; where the step is bad, the old values.

        Until the flag is known, a first step's state (`old` is None) is that of no step. Step counts are not rounded.
        """
        sizes = [value.numel() for value in new]
        flat = new[0].detach().flatten() if len(new) == 1 else torch.cat([value.detach().flatten() for value in new])
        if new[0].dim():
            flat = round_stochastically(flat, self._generator)
        if bad is not None:
            before = torch.zeros_like(flat) if old is None else torch.cat([value.detach().flatten() for value in old])
            flat = torch.where(bad.to(flat.device).bool(), before, flat)
        parts = [part.view(value.shape) for part, value in zip(torch.split(flat, sizes), new, strict=True)]
        if into is None:
            if len(parts) == 1:
                return parts
            into = [torch.empty_like(part) for part in parts]
        torch._foreach_copy_(into, parts)
        return into

    def _wide(self, value: Any) -> Any:
        """An fp32 copy for the update to work on; a step count is copied too, because optimizers raise it in place."""
        if not isinstance(value, Tensor) or self._packed:
            return value
        return value.float() if value.dim() else value.clone()
