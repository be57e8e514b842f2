"""Updates of bf16 weights that are computed in fp32 and rounded at random."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from snugfit.techniques.own_optimizer import STORAGE
from snugfit.techniques.parameter_update import OptimizerFor, ParameterUpdate


def round_stochastically(values: Tensor, generator: torch.Generator | None) -> Tensor:
    """Rounds fp32 values to bf16, up or down at random so that the mean is exact.

    Args:
        values: float32 tensor, any shape.
        generator: Source of the random bits, on the tensor's device.

    Returns:
        bfloat16 tensor of the same shape.
    """
    values = values.contiguous()
    rounded = torch.empty_like(values, dtype=torch.bfloat16)  # before the draw: where memory is short, nothing is drawn
    bits = torch.randint(0, 1 << 16, values.shape, dtype=torch.int32, device=values.device, generator=generator)
    bits.add_(values.view(torch.int32)).bitwise_and_(-(1 << 16))
    return rounded.copy_(bits.view(torch.float32))


class RoundedUpdate(ParameterUpdate):
    """One bf16 parameter, updated in fp32 and rounded stochastically."""

    def __init__(self, weight: nn.Parameter, make: OptimizerFor, generator: torch.Generator) -> None:
        """Builds the optimizer for an fp32 stand-in that exists only during a step.

        Args:
            weight: The parameter.
            make: Builds an optimizer for a parameter.
            generator: Source of random bits.
        """
        self._generator = generator
        self._state: dict[str, Any] = {}
        super().__init__(weight, make)
        self._packed = STORAGE in self.group

    def held(self) -> list[Tensor]:
        """Returns the weight and its rounded state."""
        return [*super().held(), *(value for value in self._state.values() if isinstance(value, Tensor))]

    def make_state(self) -> None:
        """Nothing: state belongs to the stand-in, and appears before the weight changes."""

    def at_once(self, bad: Tensor | None) -> bool:
        """Returns False: numbers are rounded one tensor after the other."""
        return False

    def step(self, bad: Tensor | None) -> None:
        """Updates the parameter from its `grad`.

        Args:
            bad: 0-dim float32 flag on the device: 1 leaves everything alone; None: the step is known to be good.
        """
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
        self._state = rounded

    def _updated_in_fp32(self, gradient: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Returns the updated weight and its state."""
        standin = nn.Parameter(self.weight.detach().float())
        standin.grad = gradient
        optimizer = self.optimizer
        optimizer.param_groups[0]["params"] = [standin]
        try:
            if self._state:
                optimizer.state[standin] = {name: self._wide(value) for name, value in self._state.items()}
            optimizer.step()
        finally:
            state = optimizer.state.pop(standin, {})
            optimizer.param_groups[0]["params"] = [self.weight]
        return standin.detach(), state

    def _chosen(self, name: str, value: Any, bad: Tensor) -> Any:
        if not isinstance(value, Tensor):
            return value
        return self._kept(
            self._wide(self._state[name]) if self._state else torch.zeros_like(value), value, bad.to(value.device)
        )

    @staticmethod
    def _kept(old: Tensor, new: Tensor, bad: Tensor | None) -> Tensor:
        return new if bad is None else torch.where(bad.bool(), old, new)

    def _narrow(self, value: Any) -> Any:
        """bf16 for everything as large as a weight; step counts stay exact."""
        if isinstance(value, Tensor) and value.dim():
            return round_stochastically(value.detach(), self._generator)
        return value

    def _wide(self, value: Any) -> Any:
        """A copy for the update to work on; the step count, which an optimizer raises in place, must be able to stay."""
        if not isinstance(value, Tensor) or self._packed:
            return value
        return value.float() if value.dim() else value.clone()

    def state(self) -> dict[str, Any]:
        """Returns the state of this parameter, in bf16 where it is not packed."""
        return dict(self._state)

    def load_state(self, state: dict[str, Any]) -> None:
        """Loads the state of this parameter.

        Args:
            state: In any floating dtype.
        """
        if self._packed:
            super().load_state(state)
            self._state = self.optimizer.state.pop(self.weight, {})
            return
        self._state = {
            name: value.to(self.weight.device, torch.bfloat16) if isinstance(value, Tensor) and value.dim() else value
            for name, value in state.items()
        }
