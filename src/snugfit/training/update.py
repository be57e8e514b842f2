"""The update after backward: gradients are unscaled, clipped and judged, then the optimizer steps; there is one kind of it.

What differs is how parameters are updated: all by one optimizer, or each by one of its own, at the end of the step or in the
middle of backward (`techniques/parameter_update.py`). What holds for all of them:

- `begin(step, lr_factor)` comes before the first forward pass, `judge(loss)` before each backward pass, which runs inside of
  `gradients.own_backward()`, and `finish(step, loss)` after the last;
- a step owns its gradients: `begin` frees what another backward pass (a generator's through its discriminator, a probe) has
  left, and hooks do nothing in backward passes that are not the step's own;
- the learning rate is the owner's: a schedule's factor is put on when the step begins and taken off when it ends, so what
  a scheduler or a person sets between two steps is what the next step takes;
- where memory runs out, nothing of the update is done, or all of it (`unbroken_update.py`); `begun` says whether anything
  is changed, and `interrupted` whether memory was short on the way;
- gradients are gone when `finish` returns (with `keep_gradients`, when the next step begins), so that none is alive during
  the next forward pass; `abandon()` frees them where the step failed, and `release()` takes all hooks off the parameters;
- a step whose gradients are not finite changes nothing; on CPU it raises at once, elsewhere within `health.DEPTH` steps;
- the state_dict is that of one ordinary optimizer over the same groups, so that a run can go from one way to another.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from snugfit.techniques.host_pool import HostPool
from snugfit.techniques.lost_updates import LostUpdates
from snugfit.techniques.offload_optimizer.apply import DEPTH
from snugfit.techniques.parameter_update import JointUpdate, ParameterUpdate, Settings
from snugfit.training.gradients import Gradients
from snugfit.training.health import Health, first_bad
from snugfit.training.out_of_memory import retry_after_freeing
from snugfit.training.saved_optimizer import load_saved
from snugfit.training.unbroken_update import UnbrokenUpdate

_THE_LOSS = "the loss"


@dataclasses.dataclass(eq=False, repr=False)
class Update:
    """What follows the backward passes of a step."""

    optimizer: Optimizer
    """The optimizer of all parameters."""
    parts: Sequence[JointUpdate]
    """All parameters, or each of them, in the order of the groups."""
    gradients: Gradients
    """The gradients of a step."""
    health: Health
    """Judge of the run."""
    pool: HostPool
    """Host memory."""
    _: dataclasses.KW_ONLY
    scaler: torch.amp.GradScaler | None = None
    """Loss scaling under `16-mixed`, or None."""
    lost_updates: LostUpdates | None = None
    """Watcher of lost updates, or None."""
    in_backward: bool = False
    """Whether parameters are updated by hooks in the middle of backward."""

    def __post_init__(self) -> None:
        self._leaving: deque[tuple[ParameterUpdate, str]] = deque()
        self._spoiled: str | None = None
        self._loss: Tensor | None = None
        self._own_rates: list[tuple[Settings, Any]] = []
        # No part refers back to this object, or the memory of a run that is over would wait for the garbage collector.
        self._unbroken = UnbrokenUpdate(self.pool, functools.partial(_held, self.parts, self.gradients))
        self._carrier = _Carrier(list(self.gradients.named.values()), weakref.proxy(self))
        self._hooks: list[RemovableHandle] = []
        if self.in_backward:
            names = {weight: name for name, weight in self.gradients.named.items()}
            for update in self.parts:
                assert isinstance(update, ParameterUpdate)
                hook = functools.partial(self._update_in_backward, update, names[update.weight])
                handle = update.weight.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self._hooks.append(handle)

    @property
    def masked(self) -> bool:
        """Whether a flag on the device can mask the update, so that the host need not wait for it."""
        return all(update.masked for update in self.parts)

    @property
    def begun(self) -> bool:
        """Whether anything is changed by the update of this step."""
        return self._unbroken.changed

    @property
    def interrupted(self) -> bool:
        """Whether memory was short in the update of this step."""
        return self._unbroken.interrupted

    @property
    def by_lists(self) -> bool:
        """Whether the kernels take lists of tensors, whose temporaries are as large as all parameters together."""
        lists = self.pool.device.type != "cpu"  # what torch chooses by itself
        return not isinstance(self.parts[0], ParameterUpdate) and any(
            not group.get("fused") and (lists if group.get("foreach", False) is None else group.get("foreach", False))
            for group in self.optimizer.param_groups
        )

    def begin(self, step: int, lr_factor: float) -> None:
        """Begins step `step` (from 1) without gradients; until it ends each group's rate is multiplied by `lr_factor`."""
        if self.lost_updates and lr_factor > 0:
            self.lost_updates.before(step)
        self._unbroken.begin()
        self.gradients.drop()
        self._restore_rates()
        if lr_factor != 1.0:
            self._own_rates = [(group, group["lr"]) for group in self.optimizer.param_groups]
            for group, rate in self._own_rates:
                group["lr"] = rate * lr_factor

    def _restore_rates(self) -> None:
        for group, rate in self._own_rates:
            group["lr"] = rate
        self._own_rates.clear()

    def judge(self, loss: Tensor) -> None:
        """Looks at the loss before the first parameter can change.

        `loss`: the loss that backward starts from, 0-dim; one that is not finite gives gradients that are not, so only
        an update in backward has to look.
        """
        if not self.in_backward:
            return
        self._spoiled = None
        self._loss = loss.detach() if self.gradients.ranks is None else self.gradients.ranks.total(loss)
        if not self.health.waits:
            self.health.mask(self._loss)
        elif not math.isfinite(self._loss):
            self._spoiled = _THE_LOSS

    def _update_in_backward(self, update: ParameterUpdate, name: str, _: Tensor) -> None:
        """Called by a parameter's hook when its gradient is complete: updates it, in the step's own passes only."""
        if not self.gradients.own:
            return
        if update.leaves:
            update.start()
            self._leaving.append((update, name))
            if len(self._leaving) > DEPTH:
                self._step_on_host(*self._leaving.popleft())
            return
        if self.health.waits:
            if self._spoiled is None and not math.isfinite(
                retry_after_freeing(lambda: self.gradients.norm({name: update.gradient}), self.pool.device)
            ):
                self._spoiled = name
            if self._spoiled is None:
                self._unbroken.take(update, None)
        else:
            bad = retry_after_freeing(
                lambda: self.health.mask(self.gradients.norm({name: update.gradient})), self.pool.device
            )
            self._unbroken.take(update, bad)
        update.used()

    def _step_on_host(self, update: ParameterUpdate, name: str) -> None:
        update.arrived()
        assert self._loss is not None
        if self._spoiled is None and not math.isfinite(self._loss):  # there already, since the gradient is
            self._spoiled = _THE_LOSS
        if self._spoiled is None and not math.isfinite(self.gradients.norm({name: update.gradient})):
            self._spoiled = name
        if self._spoiled is None:
            self._unbroken.take(update, None)

    def finish(self, step: int, loss: Tensor) -> None:
        """Takes the rest of the update, or leaves everything as it was; on CPU raises `TrainingError` for a bad step."""
        if self.in_backward:
            self._finish_in_backward(step, loss)
        elif self.scaler is not None:
            self._finish_scaled(self.scaler, step, loss)
        else:
            norm = self.gradients.clip()
            if not self.health.waits and self.masked:
                bad = self.health.mask(loss, norm)
                self.health.report(step, loss, norm)
                self.step_all(bad)
            elif self.health.good(norm, loss):
                self.step_all(None)
            else:
                self._refuse(step, loss)
        self.gradients.used()
        self._restore_rates()
        if self.lost_updates:
            retry_after_freeing(functools.partial(self.lost_updates.after, step), self.pool.device)

    def _finish_in_backward(self, step: int, loss: Tensor) -> None:
        while self._leaving:
            self._step_on_host(*self._leaving.popleft())
        if self._spoiled == _THE_LOSS:
            self.gradients.drop()
            self.health.stop(step, f"the loss is {float(loss):g}")
        if self._spoiled is not None:
            self.gradients.drop()
            self.health.stop(step, f"the gradient of {self._spoiled!r} is not finite", partly=True)
        if not self.health.waits:
            self.health.report(step, loss, torch.where(self.health.mask(loss).bool(), torch.inf, 0.0))

    def _finish_scaled(self, scaler: torch.amp.GradScaler, step: int, loss: Tensor) -> None:
        """Takes the update of a scaled loss; it is skipped where gradients overflow."""
        scaler.unscale_(self._carrier)
        if self.gradients.ranks is not None:
            # An overflow in one process leaves the update out in all.
            for found in scaler._per_optimizer_states[id(self._carrier)]["found_inf_per_device"].values():
                self.gradients.ranks.largest(found)
        if self.gradients.clip_norm is not None:
            self.gradients.clip()
        scaler.step(self._carrier)
        retry_after_freeing(scaler.update, self.pool.device)
        one = functools.partial(torch.ones, (), device=loss.device)
        retry_after_freeing(lambda: self.health.report(step, loss, scaler.scale(one())), self.pool.device)

    def step_all(self, bad: Tensor | None) -> None:
        """Takes every part of the update that has a gradient, in turn, freeing gradients that are used up.

        `bad`: 0-dim float32 flag on the device: 1 leaves everything alone; None: the step is known to be good.
        """
        self.gradients.settle()
        # All gradients that go to the host are on their way before the first is waited for.
        due = [update for update in self.parts if any(weight.grad is not None for weight in update.weights)]
        kept = [(weight, weight.grad) for update in due for weight in update.weights] if self.gradients.keep else []
        for update in due:
            update.start()
        for update in due:
            update.arrived()
            self._unbroken.take(update, bad)
            update.used()
        for weight, gradient in kept:
            weight.grad = gradient

    def _refuse(self, step: int, loss: Tensor) -> NoReturn:
        """Frees the gradients of a bad step, and ends the run with the cause named."""
        name = first_bad(self.gradients.present())
        self.gradients.drop()
        if bool(torch.isfinite(loss)):
            self.health.stop(step, f"the loss is finite ({float(loss):.4g}), but the gradient of {name!r} is not")
        self.health.stop(step, f"the loss is {float(loss):g}")

    def abandon(self) -> None:
        """Frees what a failed step has left."""
        self._leaving.clear()
        for update in self.parts:
            update.forget()
        self.gradients.drop()
        self._restore_rates()
        if self.lost_updates:
            self.lost_updates.forget()
        if self.scaler is not None:  # the gradients of the next attempt are to be unscaled once more
            self.scaler._per_optimizer_states.clear()
            if self.scaler._growth_tracker is None:  # memory ran out between the scale and its tracker
                self.scaler._scale = None

    def release(self) -> None:
        """Takes its hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()
        self.gradients.release()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a state_dict of this or another optimizer over the same groups; `InputError` for other parameters."""
        load_saved(self.optimizer, self.parts, state)


def _held(updates: Sequence[JointUpdate], gradients: Gradients) -> list[Tensor]:
    return [one for update in updates for one in update.held()] + list(gradients.present().values())


class _Carrier(Optimizer):
    """What a `GradScaler` takes for an optimizer: it unscales our parameters and hands us the overflow flag."""

    found_inf: Tensor | None = None

    def __init__(self, weights: list[nn.Parameter], owner: Update) -> None:
        super().__init__(weights, {})
        self._owner = owner

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # True: the scaler hands its flag to `step`. Otherwise it reads the flag itself, and the host waits.
        return self._owner.masked

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Steps every parameter; without a flag the scaler has looked at it itself."""
        assert closure is None
        self._owner.step_all(self.found_inf)
