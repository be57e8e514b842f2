"""Updates of parameters whose state lives in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from snugfit.techniques.parameter_update import ParameterUpdate, tensors_of_state
from snugfit.techniques.written_bits import sum_of_bits

if TYPE_CHECKING:
    from snugfit.techniques.base import Setup

DEPTH = 2
"""Gradients that may wait on the device for their copy to the host during backward."""


class HostUpdate(ParameterUpdate):
    """One parameter whose state and master copy live on the host; the optimizer steps the copy in its place."""

    masked = False
    leaves = True

    def __init__(self, optimizer: Optimizer, weights: Sequence[nn.Parameter], number: int, setup: Setup) -> None:
        """Copies the parameter to the host."""
        super().__init__(optimizer, weights, number)
        weight = self.weight
        self._pool, self._copies = setup.pool, setup.copies
        self._host = nn.Parameter(self._pool.copy_of(weight))
        self._sent, self._found = (self._pool.empty((), torch.int64) for _ in range(2))
        self._note_sent()
        self._gradient = self._host.grad = self._pool.empty(weight.shape, weight.dtype)
        self._arriving: tuple[Tensor, Any] | None = None
        self._pooled: dict[str, Tensor] = {}

    def start(self) -> None:
        """Starts the gradient's way to the host; the device's copy is freed when it has arrived."""
        gradient = self.weight.grad
        assert gradient is not None
        self._found.copy_(sum_of_bits(self.weight), non_blocking=True)  # it is there when the gradient is
        self.weight.grad = None
        with self._copies.copying(after=self._copies.compute_mark()):
            self._gradient.copy_(gradient, non_blocking=True)
        self._arriving = (gradient, self._copies.copy_mark())

    @property
    def gradient(self) -> Tensor:
        """The gradient on the host, once it has arrived."""
        return self._gradient

    def arrived(self) -> None:
        """Waits for the gradient."""
        assert self._arriving is not None
        _, mark = self._arriving
        self._copies.host_waits_for(mark)
        # For the device's gradient, which is freed now: compute may reuse its memory only behind the copy.
        self._copies.compute_waits_for(mark)
        self._arriving = None

    def held(self) -> list[Tensor]:
        """Returns the tensors of this update: the weight, and the copy and state on the host."""
        return [self._host, *super().held()]

    def make_state(self) -> None:
        """Does nothing: state is made with the host's copy, at the beginning of its step."""

    def step(self, bad: Tensor | None) -> None:
        """Updates the host's copy. The gradient has arrived by then and the host knows the flag, so `bad` is not read."""
        self._keep_state_in_pool()  # which somebody may have loaded
        as_sent = (self._found == self._sent).float()  # a number that a simulation reads is 1: there nobody writes
        if self.weight._version != self._version or float(as_sent) != 1:  # its owner has written into it since
            self.reload()
        state = self.optimizer.state
        try:
            # Optimizers find state by the parameter: the host's copy borrows it for this step.
            if self.weight in state:
                state[self._host] = state.pop(self.weight)
            with self.alone([self._host]):
                self.optimizer.step()
        finally:
            if self._host in state:
                state[self.weight] = state.pop(self._host)

    def send(self) -> None:
        """Starts the copy of an updated weight back to the device; may be called again after it failed."""
        self._keep_state_in_pool()
        with self._copies.copying(after=self._copies.compute_mark()), torch.no_grad():
            self.weight.copy_(self._host, non_blocking=True)
        self._copies.compute_waits_for(self._copies.copy_mark())
        self._note_sent()

    def forget(self) -> None:
        """Frees the copy of a gradient whose update is not taken."""
        if self._arriving is not None:
            self.arrived()

    def stand_ins(self) -> dict[nn.Parameter, nn.Parameter]:
        """Returns the host's copy."""
        return {self.weight: self._host}

    def reload(self) -> None:
        """Takes the parameter's present value and state, after they were loaded."""
        with torch.no_grad():
            self._host.copy_(self.weight)
        self._note_sent()
        self._keep_state_in_pool()

    def _note_sent(self) -> None:
        """Takes note of the weight as it is now, to tell later whether somebody has written into it.

        Its sum goes to the host among the compute, before whatever gradient comes next, so nobody has to wait for it and
        nothing of it stays on the device.
        """
        self._version = self.weight._version
        self._sent.copy_(sum_of_bits(self.weight), non_blocking=True)

    def _keep_state_in_pool(self) -> None:
        for name, value in tensors_of_state(self.state).items():
            if not value.dim():
                self.state[name] = value.to(self._host.device)  # a step count
            elif value is not self._pooled.get(name):
                self.state[name] = self._pooled[name] = self._pool.copy_of(value)
