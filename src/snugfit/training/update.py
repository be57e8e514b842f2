"""The update after backward: gradients are unscaled, clipped and judged, then one `torch.optim` optimizer steps.

What an update must do, whichever kind it is:

- `begin(lr_factor)` before the first forward pass, `judge(loss)` before each backward pass, which runs inside of
  `own_backward()`, and `finish(loss)` after the last;
- a step owns its gradients: `begin` frees what another backward pass (a generator's through its discriminator, a probe) has
  left, and hooks do nothing in backward passes that are not the step's own;
- the learning rate is the owner's: a schedule's factor is put on when the step begins and taken off when it ends, so what
  a scheduler or a person sets between two steps is what the next step takes;
- where memory runs out, nothing of the update is done, or all of it (`interrupted_update.py`); `begun` says whether anything
  is changed, and `interrupted` whether the update was finished that way;
- gradients are gone when `finish` returns (with `keep_gradients`, when the next step begins), so that none is alive during
  the next forward pass; `abandon()` frees them where the step failed, and `release()` takes all hooks off the parameters;
- a step whose gradients are not finite changes nothing; on CPU it raises at once, elsewhere within `health.DEPTH` steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from snugfit.errors import InputError
from snugfit.techniques.accumulate_dtype.apply import Fp32Sums
from snugfit.techniques.own_optimizer import STORAGE
from snugfit.techniques.parameter_update import masked_step, masks
from snugfit.training.health import Health, first_bad, global_norm
from snugfit.training.interrupted_update import carried_through
from snugfit.training.out_of_memory import insist
from snugfit.workload import Workload

KERNEL_SETTINGS = ("fused", "foreach", "capturable")
"""Settings of torch's optimizers that choose kernels and change no result."""


class Gradients:
    """The gradients of a step, wherever they add up: their norm, clipping, and whether they are finite."""

    def __init__(self, named: dict[str, nn.Parameter], sums: Fp32Sums | None, workload: Workload) -> None:
        """Takes note of the parameters.

        Args:
            named: Name -> parameter, what training changes.
            sums: Where gradients add up in fp32, or None.
            workload: Its `clip_norm` and `keep_gradients`.
        """
        self.named = named
        self.sums = sums
        self.clip_norm = workload.clip_norm
        self.keep = workload.keep_gradients
        self.own = False
        """Whether a backward pass of the step itself is under way."""

    @contextmanager
    def own_backward(self) -> Iterator[None]:
        """Context of a backward pass of the step; in any other one its hooks do nothing."""
        self._mark(True)
        try:
            yield
        finally:
            self._mark(False)

    def _mark(self, own: bool) -> None:
        self.own = own
        if self.sums:
            self.sums.active = own

    def present(self) -> dict[str, Tensor]:
        """Returns the gradients there are, by parameter name."""
        found = {name: self.sums.of(weight) if self.sums else weight.grad for name, weight in self.named.items()}
        return {name: gradient for name, gradient in found.items() if gradient is not None}

    def clip(self) -> Tensor:
        """Clips to the workload's norm and returns a 0-dim tensor that is finite exactly when all gradients are."""
        present = list(self.present().values())
        if not present:
            return torch.zeros((), device=next(iter(self.named.values())).device)
        if self.clip_norm is None:
            self.settle()  # a sum that fp32 holds may overflow in fp16, so it is judged in its final dtype
            return global_norm(list(self.present().values()))
        norm = global_norm(present)
        factor = (self.clip_norm / (norm + 1e-6)).clamp(max=1.0)  # torch.nn.utils.clip_grad_norm_ uses the same 1e-6
        torch._foreach_mul_(present, factor)
        return norm

    def settle(self) -> None:
        """Leaves every gradient in `grad`, in its parameter's dtype."""
        if self.sums:
            self.sums.settle()

    def release(self) -> None:
        """Takes the hooks off the parameters."""
        if self.sums:
            self.sums.release()

    def used(self) -> None:
        """Frees the gradients of an update that is done, unless they are to stay for whoever logs them."""
        if not self.keep:
            self.drop()

    def drop(self) -> None:
        """Frees all gradients."""
        if self.sums:
            self.sums.drop()
        for weight in self.named.values():
            weight.grad = None


class ScheduledRates:
    """The learning rates of a step: each group's own, times the schedule's factor until the step ends."""

    def __init__(self) -> None:
        """Has multiplied nothing yet."""
        self._own: list[tuple[dict[str, Any], Any]] = []

    def multiply(self, groups: list[dict[str, Any]], factor: float) -> None:
        """Puts a factor on.

        Args:
            groups: Parameter groups.
            factor: 1 leaves them alone.
        """
        self.restore()
        if factor != 1.0:
            self._own = [(group, group["lr"]) for group in groups]
            for group, rate in self._own:
                group["lr"] = rate * factor

    def restore(self) -> None:
        """Takes the factor off."""
        for group, rate in self._own:
            group["lr"] = rate
        self._own.clear()


class WholeUpdate:
    """One optimizer over all parameters, stepped after the last backward pass."""

    def __init__(
        self, optimizer: Optimizer, gradients: Gradients, health: Health, scaler: torch.amp.GradScaler | None
    ) -> None:
        """Takes over an optimizer.

        Args:
            optimizer: The optimizer, over the parameters of `gradients`.
            gradients: The gradients of a step.
            health: Judge of the run.
            scaler: Loss scaling under `16-mixed`, or None.
        """
        self.optimizer = optimizer
        self._gradients = gradients
        self._health = health
        self._scaler = scaler
        self._masks = masks(optimizer)
        self._device = next(iter(gradients.named.values())).device
        self._rates = ScheduledRates()
        self.begun = self.interrupted = False

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
        """Returns the parameter groups that the update goes by."""
        return self.optimizer.param_groups

    def owned(self) -> list[tuple[list[nn.Parameter], dict[str, Any]]]:
        """Returns each group with the parameters it updates."""
        return [(group["params"], group) for group in self.groups()]

    def judge(self, loss: Tensor) -> None:
        """Nothing yet: a loss that is not finite gives gradients that are not."""

    def finish(self, step: int, loss: Tensor) -> None:
        """Takes the update, or leaves everything as it was.

        Args:
            step: The step's number, from 1.
            loss: Its loss, 0-dim.
        """
        if self._scaler is not None:
            scaled_step(self.optimizer, self._gradients, self._health, self._scaler, step, loss, take=self._take)
        else:
            norm = self._gradients.clip()
            if self._masks and not self._health.waits:
                bad = self._health.mask(loss, norm)
                self._health.report(step, loss, norm)
                self._gradients.settle()
                self._take(lambda: masked_step(self.optimizer, bad), lambda: bool(bad))
            elif self._health.good(norm, loss):
                self._gradients.settle()
                self._take(self.optimizer.step)
            else:
                refuse(self._health, self._gradients, step, loss)
        self._gradients.used()
        self._rates.restore()

    def _take(self, take: Callable[[], object], bad: Callable[[], bool] | None = None) -> None:
        self.interrupted |= carried_through(self.optimizer, take, self._device, bad)
        self.begun = True

    @property
    def by_lists(self) -> bool:
        """Whether the kernels take lists of tensors, whose temporaries are as large as all parameters together."""
        lists = self._device.type != "cpu"  # what torch chooses by itself
        return any(
            not group.get("fused") and (lists if group.get("foreach", False) is None else group.get("foreach", False))
            for group in self.optimizer.param_groups
        )

    def abandon(self) -> None:
        """Frees what a step that failed has left."""
        self._gradients.drop()
        self._rates.restore()
        forget_unscaling(self._scaler)

    def release(self) -> None:
        """Takes its hooks off the parameters."""
        self._gradients.release()

    def state_dict(self) -> dict[str, Any]:
        """Returns the optimizer's own state_dict."""
        state: dict[str, Any] = self.optimizer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads an optimizer's state_dict.

        Args:
            state: From `state_dict` of this or of the plain optimizer.

        Raises:
            InputError: It is that of other parameters.
        """
        own = self.optimizer.param_groups
        groups = state["param_groups"]
        check_storage(own, groups)
        if len(groups) == len(own):  # which kernels run is this recipe's choice, not that of the run that was saved
            kernels = [{name: group[name] for name in KERNEL_SETTINGS if name in group} for group in own]
            groups = [{**given, **kept} for given, kept in zip(groups, kernels, strict=True)]
        try:
            self.optimizer.load_state_dict({**state, "param_groups": groups})
        except ValueError as error:
            raise InputError(f"the saved optimizer does not fit this model: {error}") from error


def check_storage(own: list[dict[str, Any]], saved: list[dict[str, Any]]) -> None:
    """Raises where a saved state is packed in other bits than an optimizer's.

    Args:
        own: The optimizer's parameter groups.
        saved: Those of the saved state.

    Raises:
        InputError: Naming both.
    """
    mine, theirs = ({group.get(STORAGE) for group in groups} for groups in (own, saved))
    if mine != theirs:
        names = [", ".join(sorted(name or "full precision" for name in storages)) for storages in (theirs, mine)]
        raise InputError(
            f"the saved optimizer holds its state as {names[0]}, and this recipe as {names[1]}; go on with the optimizer "
            "that was saved, or start the run anew."
        )


Take = Callable[[Callable[[], object], "Callable[[], bool] | None"], object]
"""Steps an optimizer: how, and what says after a failure whether the step is to leave everything alone."""


def scaled_step(
    optimizer: Optimizer,
    gradients: Gradients,
    health: Health,
    scaler: torch.amp.GradScaler,
    step: int,
    loss: Tensor,
    *,
    take: Take,
) -> None:
    """Takes the update of a scaled loss; the scaler leaves it out where gradients overflow.

    Args:
        optimizer: The optimizer, or what stands for one before the scaler.
        gradients: The step's gradients, still scaled.
        health: Judge of the run.
        scaler: The loss scaling.
        step: The step's number, from 1.
        loss: Its loss, 0-dim.
        take: How an update is taken.
    """

    def overflows() -> bool:
        found = scaler._found_inf_per_device(optimizer).values()
        return any(bool(flag) for flag in found)

    scaler.unscale_(optimizer)
    if gradients.clip_norm is not None:
        gradients.clip()
    take(lambda: scaler.step(optimizer), overflows)
    insist(scaler.update, loss.device)
    insist(lambda: health.report(step, loss, scaler.scale(torch.ones((), device=loss.device))), loss.device)


def forget_unscaling(scaler: torch.amp.GradScaler | None) -> None:
    """Lets a scaler unscale the gradients of a step that failed once more.

    Args:
        scaler: The loss scaling, or None.
    """
    if scaler is None:
        return
    scaler._per_optimizer_states.clear()
    if scaler._growth_tracker is None:  # memory ran out between the scale and its tracker
        scaler._scale = None


def refuse(health: Health, gradients: Gradients, step: int, loss: Tensor) -> NoReturn:
    """Frees the gradients of a bad step and ends the run with the cause named.

    Args:
        health: Judge of the run.
        gradients: The step's gradients.
        step: Its number, from 1.
        loss: Its loss.

    Raises:
        TrainingError: Always.
    """
    name = first_bad(gradients.present())
    gradients.drop()
    if bool(torch.isfinite(loss)):
        health.stop(step, f"the loss is finite ({float(loss):.4g}), but the gradient of {name!r} is not")
    health.stop(step, f"the loss is {float(loss):g}")
