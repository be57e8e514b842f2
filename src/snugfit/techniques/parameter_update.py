"""How parameters are updated: all at once by their optimizer, or one at a time by the same one.

The ordinary way is one `torch.optim` optimizer over everything. What step in backward, host state and stochastic rounding
share is that a parameter steps alone: while it does, the optimizer has this one parameter (or a tensor in its place) and
no other. Groups, settings and state are those of the one optimizer all the time, so its owner need not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from snugfit.private_torch import make_state

if TYPE_CHECKING:
    from snugfit.techniques.base import Setup

Settings = dict[str, Any]


def masks(optimizer: Optimizer) -> bool:
    """Returns whether an optimizer's kernels leave everything alone when a device flag says so.

    The fused ones do, except SGD with momentum: a masked first step leaves its momentum as uninitialised memory.
    """
    momentum = isinstance(optimizer, SGD) and any(group["momentum"] for group in optimizer.param_groups)
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False)) and not momentum


def masked_step(optimizer: Optimizer, bad: Tensor) -> None:
    """Steps a fused optimizer whose kernel leaves everything alone when a device flag says so.

    `bad`: 0-dim float32 tensor on the device: 1 leaves everything alone.
    """
    optimizer.grad_scale, optimizer.found_inf = None, bad  # type: ignore[attr-defined]
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]


def host_decides(optimizer: Optimizer) -> bool:
    """Returns whether the host must know that a step is good before this optimizer may take it.

    True for low-bit state: it has step counts on the host, and tables that no mask may touch.
    """
    return bool(getattr(optimizer, "host_decides", False))


def _add_momentum(optimizer: Optimizer) -> None:
    """Gives momentum to parameters whose first gradient comes late: torch's fused SGD wants it for all or for none."""
    for group in optimizer.param_groups if isinstance(optimizer, SGD) else ():
        if not group["momentum"] or not group["fused"]:
            continue
        state = optimizer.state
        moved = [weight for weight in group["params"] if weight.grad is not None]
        new = [weight for weight in moved if state[weight].get("momentum_buffer") is None]
        if (
            new and len(new) < len(moved) and not group["dampening"]
        ):  # 0 times momentum, and the gradient, is a first step
            for weight in new:
                state[weight]["momentum_buffer"] = torch.zeros_like(weight)


class JointUpdate:
    """All parameters of an optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        """Takes over an optimizer. Its groups are read at each step, because their owner may change them."""
        self.optimizer = optimizer

    @property
    def groups(self) -> list[Settings]:
        """The parameter groups that a step goes by."""
        return self.optimizer.param_groups

    @property
    def weights(self) -> list[nn.Parameter]:
        """The parameters that a step updates."""
        return [weight for group in self.groups for weight in group["params"]]

    @property
    def masked(self) -> bool:
        """Whether a flag on the device can keep a step from being taken."""
        return masks(self.optimizer)

    def held(self) -> list[Tensor]:
        """Returns the tensors that a step changes, those of them that exist already."""
        states = (self.optimizer.state.get(weight, {}) for weight in self.weights)
        return self.weights + [one for state in states for one in tensors_of_state(state).values()]

    def step(self, bad: Tensor | None) -> None:
        """Updates every parameter from its `grad`.

        `bad`: 0-dim float32 flag on the device: 1 leaves everything alone; None: the step is known to be good.
        """
        for part in getattr(self.optimizer, "parts", (self.optimizer,)):
            _add_momentum(part)
        if bad is None:
            self.optimizer.step()
        elif masks(self.optimizer):
            masked_step(self.optimizer, bad)
        elif not bool(bad):
            self.optimizer.step()

    def make_state(self) -> None:
        """Makes the state of a first step before anything is changed, where the class has torch's method for it."""
        if any(weight.grad is not None and weight not in self.optimizer.state for weight in self.weights):
            for part in getattr(self.optimizer, "parts", (self.optimizer,)):  # Muon has AdamW beside it
                make_state(part)

    def at_once(self, bad: Tensor | None) -> bool:
        """Returns whether a step allocates all it needs before it changes anything, as one call of a fused kernel does."""
        return len(self.groups) == 1 and bool(self.groups[0].get("fused")) and (bad is None or masks(self.optimizer))

    leaves = False
    """Whether gradients are copied to the host before a step; otherwise the methods below do nothing."""

    def start(self) -> None:
        """Starts the gradient's way to the host."""

    def arrived(self) -> None:
        """Waits for the gradient."""

    def forget(self) -> None:
        """Frees a gradient that has left for an update that is not taken."""

    def send(self) -> None:
        """Does what comes after a step (a copy back to the device); may be called again after it failed."""

    def stand_ins(self) -> dict[nn.Parameter, nn.Parameter]:
        """Returns the tensors that the optimizer always steps in place of parameters."""
        return {}

    def reload(self) -> None:
        """Takes parameters and state as they are, after they were loaded."""

    def used(self) -> None:
        """Frees the gradients of a step that was taken: all of them are, when it ends."""


class ParameterUpdate(JointUpdate):
    """One parameter, on the device, or a few that step together."""

    masked = True

    def __init__(
        self, optimizer: Optimizer, weights: Sequence[nn.Parameter], number: int = 0, setup: Setup | None = None
    ) -> None:
        """Takes the parameters, the number of their group, and what there is for all parameters."""
        super().__init__(optimizer)
        self.weight = weights[0]
        self._weights = list(weights)
        self.number = number
        """The number of its group."""

    @classmethod
    def together(cls, weights: Sequence[nn.Parameter], group: Settings, setup: Setup) -> list[list[nn.Parameter]]:
        """Returns the parameters of a group that are updated together: each by itself."""
        return [[weight] for weight in weights]

    @property
    def groups(self) -> list[Settings]:
        """The group of the parameter, looked up anew: loading a state replaces it."""
        return [self.optimizer.param_groups[self.number]]

    @property
    def weights(self) -> list[nn.Parameter]:
        """The parameter, or all that step together."""
        return self._weights

    @property
    def gradient(self) -> Tensor:
        """The gradient, where the parameter steps."""
        assert self.weight.grad is not None
        return self.weight.grad

    @contextmanager
    def alone(self, weights: list[nn.Parameter]) -> Iterator[None]:
        """Context in which the optimizer has only these parameters, or those that stand in for them."""
        optimizer, (group,) = self.optimizer, self.groups
        groups, before = optimizer.param_groups, group["params"]
        optimizer.param_groups, group["params"] = [group], weights
        try:
            yield
        finally:
            optimizer.param_groups, group["params"] = groups, before

    def step(self, bad: Tensor | None) -> None:
        """Updates the parameter from its `grad`, as `JointUpdate.step` does."""
        with self.alone([self.weight]):
            if bad is None or masks(self.optimizer) or host_decides(self.optimizer):
                super().step(bad)
            else:
                self._step_or_restore(bad)

    def make_state(self) -> None:
        """Makes the state of a first step."""
        with self.alone([self.weight]):
            super().make_state()

    def _step_or_restore(self, bad: Tensor) -> None:
        """For kernels without a mask: steps, then chooses on the device between the old values and the new ones."""
        before = {name: value.clone() for name, value in self._tensors().items()}
        self.optimizer.step()
        with torch.no_grad():
            for name, value in self._tensors().items():
                old = before.get(name, torch.zeros_like(value))
                value.copy_(torch.where(bad.to(value.device).bool(), old, value))

    def _tensors(self) -> dict[str, Tensor]:
        return {"": self.weight.detach(), **tensors_of_state(self.state)}

    def used(self) -> None:
        """Frees the gradients."""
        for weight in self._weights:
            weight.grad = None

    @property
    def state(self) -> dict[str, Any]:
        """The optimizer's state of this parameter; empty before the first step."""
        found: dict[str, Any] = self.optimizer.state.get(self.weight, {})
        return found


def tensors_of_state(state: dict[str, Any]) -> dict[str, Tensor]:
    """Returns the tensors in the state of a parameter."""
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}
