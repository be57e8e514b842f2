"""Updates of bf16 weights that are computed in fp32 and rounded at random."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from snugfit.techniques.own_optimizer import STORAGE
from snugfit.techniques.parameter_update import ParameterUpdate

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
    """One bf16 parameter, updated in fp32; it and its state are rounded at random, unless the state is packed."""

    def __init__(self, optimizer: Optimizer, weight: nn.Parameter, number: int, setup: Setup) -> None:
        """Takes the parameter, and the source of random bits."""
        super().__init__(optimizer, weight, number)
        self._generator = setup.generator
        self._packed = STORAGE in self.groups[0]

    def make_state(self) -> None:
        """Does nothing: the state belongs to the fp32 stand-in, and is made before the weight changes."""

    def at_once(self, bad: Tensor | None) -> bool:
        """Returns False: numbers are rounded one tensor after the other."""
        return False

    def step(self, bad: Tensor | None) -> None:
        """Updates the parameter from its `grad`.

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
        assert self.weight.grad is not None
        gradient = self.weight.grad.float()
        self.weight.grad = None
        weight, state = self._updated_in_fp32(gradient)
        del gradient  # rounding needs room of its own
        with torch.no_grad():
            self.weight.copy_(self._kept(self.weight, self._narrow(weight), bad))
            del weight
            rounded = {}
            for name in list(state):
                # until the flag is known, a first step's state is that of no step
                chosen = state[name] if bad is None else self._chosen(name, state[name], bad)
                rounded[name] = chosen if self._packed else self._narrow(chosen)
                del state[name]
        self.optimizer.state[self.weight] = rounded

    def _updated_in_fp32(self, gradient: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Returns the updated weight and its state, by way of an fp32 stand-in that exists during the step only."""
        standin = nn.Parameter(self.weight.detach().float())
        standin.grad = gradient
        states = self.optimizer.state
        try:
            if self.state:
                states[standin] = {name: self._wide(value) for name, value in self.state.items()}
            with self.alone(standin):
                self.optimizer.step()
        finally:
            state = states.pop(standin, {})
        return standin.detach(), state

    def _chosen(self, name: str, value: Any, bad: Tensor) -> Any:
        if not isinstance(value, Tensor):
            return value
        old = self._wide(self.state[name]) if self.state else torch.zeros_like(value)
        return self._kept(old, value, bad.to(value.device))

    @staticmethod
    def _kept(old: Tensor, new: Tensor, bad: Tensor | None) -> Tensor:
        return new if bad is None else torch.where(bad.bool(), old, new)

    def _narrow(self, value: Any) -> Any:
        """Returns bf16 for everything as large as a weight; step counts stay exact."""
        if isinstance(value, Tensor) and value.dim():
            return round_stochastically(value.detach(), self._generator)
        return value

    def _wide(self, value: Any) -> Any:
        """An fp32 copy for the update to work on; a step count is copied too, because optimizers raise it in place."""
        if not isinstance(value, Tensor) or self._packed:
            return value
        return value.float() if value.dim() else value.clone()
