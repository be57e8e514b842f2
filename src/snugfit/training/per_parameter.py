"""The update by one optimizer a parameter: at the end of the step, or in the middle of backward.

Does what `update.WholeUpdate` does, and has the same state_dict as one ordinary optimizer over the same groups, so that a
run can go from one to the other.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from snugfit.errors import InputError
from snugfit.techniques.offload_optimizer.apply import HostQueue, HostUpdate
from snugfit.techniques.own_optimizer import Groups
from snugfit.techniques.parameter_update import ParameterUpdate
from snugfit.techniques.step_in_backward.apply import when_gradient_is_complete
from snugfit.techniques.stochastic_rounding.apply import RoundedUpdate
from snugfit.training.health import Health, global_norm
from snugfit.training.interrupted_update import parameter_carried_through
from snugfit.training.out_of_memory import insist
from snugfit.training.update import (
    KERNEL_SETTINGS,
    Gradients,
    ScheduledRates,
    check_storage,
    forget_unscaling,
    refuse,
    scaled_step,
)

_THE_LOSS = "the loss"


class PerParameterUpdate:
    """Steps each parameter's own optimizer."""

    def __init__(
        self,
        updates: list[ParameterUpdate],
        groups: Groups,
        gradients: Gradients,
        health: Health,
        *,
        scaler: torch.amp.GradScaler | None,
        in_backward: bool,
    ) -> None:
        """Takes over the parameters' updates.

        Args:
            updates: One for each parameter, in the order of the groups.
            groups: The parameter groups of the ordinary optimizer that this stands for.
            gradients: The gradients of a step.
            health: Judge of the run.
            scaler: Loss scaling under `16-mixed`, or None.
            in_backward: Whether parameters are updated by hooks in the middle of backward.
        """
        self._updates = updates
        self.ordinary_groups = groups
        """The parameter groups of the one optimizer that this stands for."""
        self._gradients = gradients
        self._health = health
        self._scaler = scaler
        self._in_backward = in_backward
        self._queue = HostQueue()
        self._spoiled: str | None = None
        self._loss: Tensor | None = None
        self._hooks: list[RemovableHandle] = []
        self._device = next(iter(gradients.named.values())).device
        self._rates = ScheduledRates()
        self.begun = self.interrupted = False
        self._carrier = _Carrier(list(gradients.named.values()), self)
        if in_backward:
            names = {weight: name for name, weight in gradients.named.items()}
            for update in updates:
                hook = _InBackward(self, update, names[update.weight])
                self._hooks.append(when_gradient_is_complete(update.weight, hook))

    def begin(self, lr_factor: float) -> None:
        """Begins a step with clean gradients and its learning rate.

        Args:
            lr_factor: What each group's own rate is multiplied with until the step ends.
        """
        self.begun = self.interrupted = False
        self._gradients.drop()
        self._rates.multiply(self.groups(), lr_factor)

    def own_backward(self) -> AbstractContextManager[None]:
        """Returns the context of a backward pass of the step."""
        return self._gradients.own_backward()

    def groups(self) -> list[dict[str, Any]]:
        """Returns the parameter groups that the update goes by, one a parameter."""
        return [update.group for update in self._updates]

    def owned(self) -> list[tuple[list[nn.Parameter], dict[str, Any]]]:
        """Returns each group with the parameters it updates."""
        return [([update.weight], update.group) for update in self._updates]

    def judge(self, loss: Tensor) -> None:
        """Looks at the loss before the first parameter can change.

        Args:
            loss: The loss that backward starts from, 0-dim.

        Raises:
            TrainingError: On CPU, when it is not finite and parameters would be updated in backward.
        """
        if not self._in_backward:
            return
        self._spoiled = None
        self._loss = loss.detach()
        if not self._health.waits:
            self._health.mask(loss)
        elif not math.isfinite(self._loss):
            self._spoiled = _THE_LOSS

    def update_in_backward(self, update: ParameterUpdate, name: str) -> None:
        """Updates one parameter, called by its hook; not in a backward pass of somebody else's.

        Args:
            update: The parameter's update.
            name: Its name.
        """
        if not self._gradients.own:
            return
        gradient = update.weight.grad
        assert gradient is not None
        if isinstance(update, HostUpdate):
            for due in self._queue.push(update):
                self._step_on_host(due)
            return
        if self._health.waits:
            if self._spoiled is None and not math.isfinite(insist(lambda: global_norm([gradient]), self._device)):
                self._spoiled = name
            if self._spoiled is None:
                self._take(update, None)
        else:
            self._take(update, insist(lambda: self._health.mask(global_norm([gradient])), self._device))
        update.weight.grad = None

    def _step_on_host(self, update: HostUpdate) -> None:
        gradient = update.arrived()
        assert self._loss is not None
        if self._spoiled is None and not math.isfinite(self._loss):  # there already, since the gradient is
            self._spoiled = _THE_LOSS
        if self._spoiled is None and not math.isfinite(global_norm([gradient])):
            self._spoiled = next(name for name, weight in self._gradients.named.items() if weight is update.weight)
        if self._spoiled is None:
            self._take(update, None)

    def _take(self, update: ParameterUpdate, bad: Tensor | None) -> None:
        self.interrupted |= parameter_carried_through(update, bad, self._device)
        self.begun = True

    def finish(self, step: int, loss: Tensor) -> None:
        """Takes what is left of the update, or leaves everything as it was.

        Args:
            step: The step's number, from 1.
            loss: Its loss, 0-dim.
        """
        if self._in_backward:
            self._finish_in_backward(step, loss)
        elif self._scaler is not None:
            scaled_step(
                self._carrier, self._gradients, self._health, self._scaler, step, loss, take=lambda update, _: update()
            )
        else:
            norm = self._gradients.clip()
            on_host = any(isinstance(update, HostUpdate) for update in self._updates)
            if self._health.waits or on_host:  # an update on the host waits for the gradients anyway
                if not self._health.good(norm, loss):
                    refuse(self._health, self._gradients, step, loss)
                self.step_all(None)
            else:
                bad = self._health.mask(loss, norm)
                self._health.report(step, loss, norm)
                self.step_all(bad)
        self._gradients.used()
        self._rates.restore()

    @property
    def by_lists(self) -> bool:
        """Whether the kernels take lists of tensors: no, one parameter is updated at a time."""
        return False

    def abandon(self) -> None:
        """Frees what a step that failed has left."""
        self._queue = HostQueue()
        for update in self._updates:
            if isinstance(update, HostUpdate | RoundedUpdate):
                update.forget()
        self._gradients.drop()
        self._rates.restore()
        forget_unscaling(self._scaler)

    def release(self) -> None:
        """Takes its hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._gradients.release()

    def _finish_in_backward(self, step: int, loss: Tensor) -> None:
        for update in self._queue.rest():
            self._step_on_host(update)
        if self._spoiled == _THE_LOSS:
            self._gradients.drop()
            self._health.stop(step, f"the loss is {float(loss):g}")
        if self._spoiled is not None:
            self._gradients.drop()
            self._health.stop(step, f"the gradient of {self._spoiled!r} is not finite", partly=True)
        if not self._health.waits:
            self._health.report(step, loss, torch.where(self._health.mask(loss).bool(), torch.inf, 0.0))

    def step_all(self, bad: Tensor | None) -> None:
        """Steps every parameter that has a gradient, one after the other, freeing each gradient.

        Args:
            bad: 0-dim float32 flag on the device: 1 leaves everything alone; None: the step is known to be good.
        """
        self._gradients.settle()
        with_gradient = [update for update in self._updates if update.weight.grad is not None]
        kept = [(update.weight, update.weight.grad) for update in with_gradient] if self._gradients.keep else []
        on_host = [update for update in with_gradient if isinstance(update, HostUpdate)]
        skip = bool(on_host) and bad is not None and bool(bad)
        for leaving in on_host:
            leaving.start()
        for update in with_gradient:
            if isinstance(update, HostUpdate):
                update.arrived()
                if not skip:
                    self._take(update, None)
            else:
                self._take(update, bad)
                update.weight.grad = None
        for weight, gradient in kept:
            weight.grad = gradient

    def state_dict(self) -> dict[str, Any]:
        """Returns the state_dict that one ordinary optimizer over the same groups would have."""
        state, groups, at = {}, [], 0
        for group in self.ordinary_groups:
            updates = self._updates[at : at + len(group["params"])]
            for position, update in enumerate(updates, start=at):
                if update.state():
                    state[position] = update.state()
            settings = {name: value for name, value in updates[0].group.items() if name != "params"}
            groups.append({**settings, "params": list(range(at, at + len(updates)))})
            at += len(updates)
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads the state_dict of this or of one ordinary optimizer over the same groups.

        Args:
            state: The state_dict.

        Raises:
            InputError: It is that of other parameters.
        """
        check_storage([update.group for update in self._updates], state["param_groups"])
        groups = {position: group for group in state["param_groups"] for position in group["params"]}
        if len(groups) != len(self._updates):
            raise InputError(
                f"the saved optimizer does not fit this model: it has {len(groups)} parameters, the model "
                f"{len(self._updates)}."
            )
        for position, update in enumerate(self._updates):
            update.load_state(state["state"].get(position, {}))
            settings = {
                name: value for name, value in groups[position].items() if name not in ("params", *KERNEL_SETTINGS)
            }
            update.group.update(settings)
            if isinstance(update, HostUpdate):
                update.reload()


class _InBackward:
    """The hook of one parameter."""

    def __init__(self, owner: PerParameterUpdate, update: ParameterUpdate, name: str) -> None:
        self._owner, self._update, self._name = owner, update, name

    def __call__(self) -> None:
        self._owner.update_in_backward(self._update, self._name)


class _Carrier(Optimizer):
    """What a `GradScaler` takes for an optimizer: it unscales our parameters and hands us the overflow flag."""

    _step_supports_amp_scaling = True

    def __init__(self, weights: list[nn.Parameter], owner: PerParameterUpdate) -> None:
        super().__init__(weights, {})
        self._owner = owner
        self.found_inf: Tensor | None = None

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Steps every parameter under the scaler's flag."""
        assert closure is None and self.found_inf is not None
        self._owner.step_all(self.found_inf)
