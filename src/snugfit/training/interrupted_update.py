"""An update that a failed allocation interrupts is finished, parameter by parameter, as if nothing had happened.

An optimizer of torch changes step counts, moments and weights in place, one operator after the other, and makes temporaries
in between; when one of those does not fit, some of the changes are made already and nothing says which. But every operator
that changes a tensor in place also counts up the tensor's version. The versions before the update are noted (no copy, about
0.1 microseconds a tensor). After a failure they say how many of its changes each tensor has seen. The optimizer then runs
again for one parameter at a time, with the same kernels, so its temporaries are those of one parameter; changes that were
made are left out, as many for each tensor as its version says, and gradients are freed as they are used up.

What makes that right is watched, operator by operator: nothing that is still to be written may depend on a tensor that
has moved on since it was read the first time. Where it would, a scaling (weight decay) is taken back and made again;
anything else ends the run with the cause named. Fused kernels do not count versions and need none of this: they make all
their tensors first and then change everything in one call.

Known limits: optimizers that are not in torch.optim are not finished, low-bit ones included, since their kernels need not
count versions; the error says that the update ended half way. So does SGD with momentum, weight decay and `for-loop`
kernels in its first step. Muon is finished part by part, its own matrices first.
Source: torch.Tensor._version (the counter autograd checks saved tensors by); torch.utils._python_dispatch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adafactor, Adam, AdamW, Muon, Optimizer

from snugfit.errors import OutOfMemoryError
from snugfit.techniques.muon.apply import MuonWithAdamW
from snugfit.techniques.offload_optimizer.apply import HostUpdate
from snugfit.techniques.parameter_update import ParameterUpdate
from snugfit.techniques.stochastic_rounding.apply import RoundedUpdate
from snugfit.training.out_of_memory import free_memory, is_out_of_memory, let_go
from snugfit.training.repeated_operators import Continued, Listener, ReadTooLate, Watch

FINISHABLE = (Adam, AdamW, SGD, Adafactor, Muon)
"""Optimizers of torch that update each parameter by itself, change state by in-place operators only, and are tested."""


def carried_through(
    optimizer: Optimizer, take: Callable[[], object], device: torch.device, bad: Callable[[], bool] | None = None
) -> bool:
    """Takes an update that survives a failed allocation.

    Args:
        optimizer: The optimizer.
        take: Steps it.
        device: Where it runs.
        bad: Says, after a failure, whether the step is to leave everything alone; None: it is known to be good.

    Returns:
        Whether the update was interrupted (and is finished now).

    Raises:
        RuntimeError: Memory ran out, and nothing was changed.
        OutOfMemoryError: Memory ran out, and some parameters are changed and others not.
    """
    journal = Journals(optimizer)
    try:
        take()
        return False
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        cause = let_go(error)
    free_memory(device)
    journal.finish(cause, bad)
    return True


def parameter_carried_through(update: ParameterUpdate, bad: Tensor | None, device: torch.device) -> bool:
    """Takes the update of one parameter, and survives a failed allocation.

    Args:
        update: The parameter's update.
        bad: 0-dim float32 flag on the device: 1 leaves everything alone; None: the step is known to be good.
        device: Where training runs.

    Returns:
        Whether it was interrupted (and is finished now).

    Raises:
        RuntimeError: Memory ran out, and the parameter is as it was.
        OutOfMemoryError: Memory ran out, and the parameter or its state is changed.
    """
    journal = Journals(update.optimizer)
    version = update.weight._version
    try:
        update.step(bad)
        return False
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        cause = let_go(error)
    free_memory(device)
    again = _again(update, bad, journal, cause)
    try:
        again()
    except Exception as error:
        if is_out_of_memory(error) and (update.weight._version != version or isinstance(update, HostUpdate)):
            raise half_way(f"{cause} {let_go(error)}", "the update of a parameter") from None
        raise
    return True


def _again(update: ParameterUpdate, bad: Tensor | None, journal: Journals, cause: str) -> Callable[[], None]:
    """How the update of a parameter goes on."""
    if isinstance(update, RoundedUpdate):
        if not update.repeatable:
            raise half_way(cause, "an update of packed state, which cannot be finished")
        return functools.partial(update.step, bad)

    def go_on() -> None:
        journal.finish(cause, None if bad is None else lambda: bool(bad))
        if isinstance(update, HostUpdate):
            update.send()

    return go_on


class Journals:
    """The journal of each optimizer that an update consists of: one, except for Muon, which has AdamW beside it."""

    __slots__ = ("_parts",)

    def __init__(self, optimizer: Optimizer) -> None:
        """Notes the versions.

        Args:
            optimizer: The optimizer, before its step.
        """
        parts = optimizer.parts if isinstance(optimizer, MuonWithAdamW) else (optimizer,)
        self._parts = [Journal(part) for part in parts]

    def finish(self, cause: str, bad: Callable[[], bool] | None = None) -> None:
        """Finishes the update after a failure, as `Journal.finish` does."""
        for number, part in enumerate(self._parts):
            try:
                part.finish(cause, bad)
            except Exception as error:
                # Nothing of this part is changed, but the parts before it are finished.
                if number and is_out_of_memory(error) and not isinstance(error, OutOfMemoryError):
                    raise half_way(f"{cause} {let_go(error)}", "the update") from None
                raise


class Journal:
    """What an update is going to change, as it was before."""

    __slots__ = ("_before", "_optimizer")

    def __init__(self, optimizer: Optimizer) -> None:
        """Notes the versions.

        Args:
            optimizer: The optimizer, before its step.
        """
        self._optimizer = optimizer
        self._before = {id(tensor): tensor._version for tensor in _counted(optimizer)}

    def finish(self, cause: str, bad: Callable[[], bool] | None = None) -> None:
        """Finishes the update after a failure, or leaves everything as it was.

        Args:
            cause: What failed, for the message.
            bad: Says whether the step is to leave everything alone; None: it is known to be good.

        Raises:
            RuntimeError: Memory ran out again, and nothing is changed.
            OutOfMemoryError: Some parameters are changed, and the others cannot be.
        """
        optimizer = self._optimizer
        for name in ("grad_scale", "found_inf"):  # a step that is masked leaves them behind when it fails
            vars(optimizer).pop(name, None)
        what = f"the update of {type(optimizer).__name__}, which cannot be finished"
        if type(optimizer) not in FINISHABLE:
            raise half_way(cause, what)
        made = {id(tensor): self._count(tensor) for tensor in _counted(optimizer)}
        self._drop_new_state(made)
        if not _versions_count():
            raise half_way(cause, what)
        if bad is not None and bad():
            if any(made.values()) and not _fused(optimizer.param_groups):  # fused kernels were masked
                raise half_way(cause, "the update of a step with gradients that are not finite")
            return
        groups = optimizer.param_groups
        try:
            for group in groups:
                for weight in group["params"]:
                    if weight.grad is not None:
                        optimizer.param_groups = [{**group, "params": [weight]}]
                        self._finish_one(weight, made)
                        weight.grad = None
        except ReadTooLate as error:
            raise half_way(cause, "the update") from error
        except Exception as error:
            if is_out_of_memory(error) and any(made.values()):
                raise half_way(f"{cause} {let_go(error)}", "the update") from None
            self._drop_new_state(made)
            raise
        finally:
            optimizer.param_groups = groups

    def _count(self, tensor: Tensor) -> int:
        return tensor._version - self._before.get(id(tensor), 0)

    def _drop_new_state(self, made: dict[int, int]) -> None:
        """State that was being made when memory ran out, and that no parameter has used yet."""
        state = self._optimizer.state
        for weight in list(state):
            tensors = _tensors(state[weight])
            if any(id(tensor) in self._before for tensor in tensors) or self._has_first_momentum(weight):
                continue
            if not any(made.get(id(tensor)) for tensor in (weight, *tensors)):
                del state[weight]

    def _has_first_momentum(self, weight: Tensor) -> bool:
        """SGD keeps the first momentum of its parameters when the update of their whole group is done."""
        momentum = self._optimizer.state.get(weight, {}).get("momentum_buffer")
        return type(self._optimizer) is SGD and momentum is not None and id(momentum) not in self._before

    def _done(self, weight: Tensor, made: dict[int, int]) -> bool:
        """Whether a parameter is known to be done without looking at its operators."""
        if self._has_first_momentum(weight):
            return True
        step = self._optimizer.state.get(weight, {}).get("step")  # a fused kernel comes right behind the count
        return _fused(self._optimizer.param_groups) and step is not None and made.get(id(step), 0) > 0

    def _finish_one(self, weight: Tensor, made: dict[int, int]) -> None:
        optimizer = self._optimizer
        if self._done(weight, made):
            return
        if _fused(optimizer.param_groups):
            optimizer.step()
            made[id(weight)] = 1
            return
        tracked = {id(tensor): tensor for tensor in (weight, *_tensors(optimizer.state.get(weight, {})))}
        if not any(made.get(key) for key in tracked):
            tracked = {}  # nothing of it was done: an ordinary step
        try:
            self._step(weight, Continued(tracked, made))
        except ReadTooLate as late:
            plan = Listener(tracked)
            self._step(weight, plan)
            if not all(plan.take_back(tensor, made[id(tensor)]) for tensor in late.tensors):
                raise
            made.update({id(tensor): 0 for tensor in late.tensors})
            self._step(weight, Continued(tracked, made))
        made[id(weight)] = max(made[id(weight)], 1)

    def _step(self, weight: Tensor, mode: Watch) -> None:
        with mode:
            self._optimizer.step()
        for value in _tensors(self._optimizer.state.get(weight, {})):
            if value in mode.doubtful:
                raise ReadTooLate(mode.late)


def half_way(cause: str, what: str) -> OutOfMemoryError:
    """Returns the error for a step that can neither be undone nor finished.

    Args:
        cause: What failed.
        what: What was interrupted.
    """
    return OutOfMemoryError(
        f"memory ran out inside {what}, after some parameters were changed and before the others were: {cause} "
        "The step can neither be undone nor finished; go back to a checkpoint.",
        undone=False,
    )


def _tensors(state: dict[str, Any]) -> list[Tensor]:
    return [value for value in state.values() if isinstance(value, Tensor)]


def _counted(optimizer: Optimizer) -> list[Tensor]:
    """The tensors whose versions tell what was done: of fused kernels, which count no versions, what stands beside them."""
    states = optimizer.state.values()
    if _fused(optimizer.param_groups):
        found = (state.get("step", state.get("momentum_buffer")) for state in states)
        return [tensor for tensor in found if isinstance(tensor, Tensor)]
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    return weights + [value for state in states for value in state.values() if isinstance(value, Tensor)]


def _versions_count() -> bool:
    """Whether operators on lists count versions here: not while a dispatch mode of the caller's is active."""
    probe = torch.empty(1, device="meta")  # needs no memory
    torch._foreach_add_([probe], 1.0)
    return probe._version == 1


def _fused(groups: list[dict[str, Any]]) -> bool:
    return all(bool(group.get("fused")) for group in groups)
