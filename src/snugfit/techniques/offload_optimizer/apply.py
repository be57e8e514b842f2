"""Updates of parameters whose state lives in host memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from snugfit.techniques.host_pool import HostPool
from snugfit.techniques.parameter_update import OptimizerFor, ParameterUpdate
from snugfit.techniques.streams import CopyStream

DEPTH = 2
"""Gradients that may wait on the device for their copy to the host during backward."""


class HostUpdate(ParameterUpdate):
    """One parameter whose optimizer, state and master copy live on the host."""

    masked = False

    def __init__(self, weight: nn.Parameter, make: OptimizerFor, pool: HostPool, copies: CopyStream) -> None:
        """Copies the parameter to the host.

        Args:
            weight: The parameter on the device.
            make: Builds an optimizer for the host's copy.
            pool: Host memory.
            copies: Order of the copies.
        """
        self._pool = pool
        self._copies = copies
        self._host = nn.Parameter(pool.copy_of(weight))
        self._gradient = pool.empty(weight.shape, weight.dtype)
        super().__init__(weight, make, self._host)
        self._arriving: tuple[Tensor, Any] | None = None
        self._pooled: dict[str, Tensor] = {}

    def start(self) -> None:
        """Starts the gradient's way to the host; the device's copy is freed when it has arrived."""
        gradient = self.weight.grad
        assert gradient is not None
        self.weight.grad = None
        with self._copies.copying(after=self._copies.compute_mark()):
            self._gradient.copy_(gradient, non_blocking=True)
        self._arriving = (gradient, self._copies.copy_mark())

    def arrived(self) -> Tensor:
        """Returns the gradient on the host, waiting for it."""
        assert self._arriving is not None
        gradient, mark = self._arriving
        self._copies.host_waits_for(mark)
        self._copies.compute_waits_for(mark)
        self._arriving = None
        del gradient
        return self._gradient

    def held(self) -> list[Tensor]:
        """Returns the weight, and what is on the host."""
        return [self.weight, *super().held()]

    def step(self, bad: Tensor | None) -> None:
        """Updates the host's copy; the gradient must have arrived.

        Args:
            bad: Not looked at: the host sees the gradient itself.
        """
        self._host.grad = self._gradient
        self.optimizer.step()
        self._host.grad = None

    def send(self) -> None:
        """Starts the way back of a weight that was updated; what failed on the way may be tried again."""
        self._keep_state_in_pool()
        with self._copies.copying(after=self._copies.compute_mark()), torch.no_grad():
            self.weight.copy_(self._host, non_blocking=True)
        self._copies.compute_waits_for(self._copies.copy_mark())

    def forget(self) -> None:
        """Frees a gradient that has left for an update that is not taken."""
        if self._arriving is not None:
            self.arrived()

    def load_state(self, state: dict[str, Any]) -> None:
        """Loads state and takes the parameter's present value.

        Args:
            state: The optimizer state of this parameter.
        """
        super().load_state(state)
        self._keep_state_in_pool()

    def reload(self) -> None:
        """Takes the parameter's present value for the host's copy, after the model was loaded."""
        with torch.no_grad():
            self._host.copy_(self.weight)

    def _keep_state_in_pool(self) -> None:
        state = self.optimizer.state.get(self._host, {})
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim() and value is not self._pooled.get(name):
                state[name] = self._pooled[name] = self._pool.copy_of(value)
