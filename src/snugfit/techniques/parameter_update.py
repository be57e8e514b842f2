"""How parameters are updated: all by one optimizer, or each by an optimizer of its own.

The ordinary way is one `torch.optim` optimizer over everything. What step in backward, host state and stochastic rounding
share is an ordinary optimizer for each parameter, so that it can step alone; together they have the state of one ordinary
optimizer over all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from snugfit.private_torch import make_state

OptimizerFor = Callable[[nn.Parameter], Optimizer]
Settings = dict[str, Any]


def masks(optimizer: Optimizer) -> bool:
    """Returns whether an optimizer's kernels leave everything alone when a device flag says so.

    The fused ones do, except SGD with momentum: a masked first step leaves its momentum as uninitialised memory.

    Args:
        optimizer: Any optimizer.
    """
    momentum = isinstance(optimizer, SGD) and any(group["momentum"] for group in optimizer.param_groups)
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False)) and not momentum


def masked_step(optimizer: Optimizer, bad: Tensor) -> None:
    """Steps a fused optimizer whose kernel leaves everything alone when a device flag says so.

    Args:
        optimizer: An optimizer of torch with fused kernels.
        bad: 0-dim float32 tensor on the device: 1 leaves everything alone.
    """
    optimizer.grad_scale, optimizer.found_inf = None, bad  # type: ignore[attr-defined]
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]


def host_decides(optimizer: Optimizer) -> bool:
    """Returns whether the host must know that a step is good before this optimizer may take it.

    So it is for low-bit state: it has step counts on the host, and tables that no mask may touch.

    Args:
        optimizer: Any optimizer.
    """
    return bool(getattr(optimizer, "host_decides", False))


class JointUpdate:
    """All parameters, by one optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        """Takes over an optimizer.

        Args:
            optimizer: Its groups are read at each step, since their owner may change them.
        """
        self.optimizer = optimizer

    @property
    def masked(self) -> bool:
        """Whether a flag on the device can keep a step from being taken."""
        return masks(self.optimizer)

    def owned(self) -> list[tuple[list[nn.Parameter], Settings]]:
        """Returns each parameter group with the parameters that it updates."""
        return [(group["params"], group) for group in self.optimizer.param_groups]

    def held(self) -> list[Tensor]:
        """Returns the tensors that a step changes, as far as they are there."""
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        return weights + [one for state in self.optimizer.state.values() for one in _tensors(state).values()]

    def step(self, bad: Tensor | None) -> None:
        """Updates every parameter from its `grad`.

        Args:
            bad: 0-dim float32 flag on the device: 1 leaves everything alone; None: the step is known to be good.
        """
        if bad is None:
            self.optimizer.step()
        elif masks(self.optimizer):
            masked_step(self.optimizer, bad)
        elif not bool(bad):
            self.optimizer.step()

    def make_state(self) -> None:
        """Makes the state of a first step before anything is changed, where the class has torch's method for it."""
        weights = (weight for group in self.optimizer.param_groups for weight in group["params"])
        if any(weight.grad is not None and weight not in self.optimizer.state for weight in weights):
            for part in getattr(self.optimizer, "parts", (self.optimizer,)):  # Muon has AdamW beside it
                make_state(part)

    def at_once(self, bad: Tensor | None) -> bool:
        """Returns whether a step makes all it needs before it changes anything: one call of a fused kernel does.

        Args:
            bad: As for `step`.
        """
        groups = self.optimizer.param_groups
        return len(groups) == 1 and bool(groups[0].get("fused")) and (bad is None or masks(self.optimizer))

    def send(self) -> None:
        """Finishes what comes after a step and may be tried again: nothing, the weights are where they belong."""

    def used(self) -> None:
        """Frees the gradients of a step that was taken: all of them are, when it ends."""


class ParameterUpdate(JointUpdate):
    """One parameter and its optimizer, on the device."""

    masked = True

    def __init__(self, weight: nn.Parameter, make: OptimizerFor, owned: nn.Parameter | None = None) -> None:
        """Builds the optimizer.

        Args:
            weight: The parameter.
            make: Builds an optimizer for a parameter.
            owned: The parameter the optimizer works on, where it is not the weight itself.
        """
        self.weight = weight
        self._owned = weight if owned is None else owned
        super().__init__(make(self._owned))

    @property
    def group(self) -> Settings:
        """The optimizer's only parameter group."""
        group: Settings = self.optimizer.param_groups[0]
        return group

    def owned(self) -> list[tuple[list[nn.Parameter], Settings]]:
        """Returns the parameter group with the parameter."""
        return [([self.weight], self.group)]

    def step(self, bad: Tensor | None) -> None:
        """Updates the parameter from its `grad`.

        Args:
            bad: 0-dim float32 flag on the device: 1 leaves everything alone; None: the step is known to be good.
        """
        if bad is None or masks(self.optimizer) or host_decides(self.optimizer):
            super().step(bad)
        else:
            self._step_or_restore(bad)

    def _step_or_restore(self, bad: Tensor) -> None:
        """For kernels without a mask: keeps this one parameter's old values until the flag has chosen between them."""
        before = {name: value.clone() for name, value in self._tensors().items()}
        self.optimizer.step()
        with torch.no_grad():
            for name, value in self._tensors().items():
                old = before.get(name, torch.zeros_like(value))
                value.copy_(torch.where(bad.to(value.device).bool(), old, value))

    def _tensors(self) -> dict[str, Tensor]:
        return {"": self._owned.detach(), **_tensors(self.optimizer.state.get(self._owned, {}))}

    def used(self) -> None:
        """Frees the gradient."""
        self.weight.grad = None

    def state(self) -> dict[str, Any]:
        """Returns the state of this parameter, as in the `state` of an optimizer's state_dict."""
        return dict(self.optimizer.state.get(self._owned, {}))

    def load_state(self, state: dict[str, Any]) -> None:
        """Loads the state of this parameter.

        Args:
            state: As from `state`; empty before the first step.
        """
        plain = self.optimizer.state_dict()
        plain["state"] = {0: state} if state else {}
        self.optimizer.load_state_dict(plain)


def _tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}
