"""A learning-rate scheduler of the caller's: any of `torch.optim.lr_scheduler`, of transformers, or one written alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from snugfit.errors import InputError

SchedulerArgument = Any | Callable[[Optimizer], Any]


def scheduler_of(given: SchedulerArgument | None, optimizer: Optimizer) -> Any | None:
    """Returns the scheduler that is stepped after each update.

    Args:
        given: A scheduler of this optimizer, a function from the optimizer to one, or None.
        optimizer: `trainer.optimizer`.

    Raises:
        InputError: It is no scheduler, that of another optimizer, or one that needs more than the step.
    """
    if given is None:
        return None
    makes = callable(given) and (isinstance(given, type) or not hasattr(given, "step"))
    scheduler = given(optimizer) if makes else given
    if not callable(getattr(scheduler, "step", None)):
        raise InputError(
            f"scheduler is a {type(scheduler).__name__}; give a scheduler of torch.optim.lr_scheduler, or a function from "
            "the optimizer to one, such as lambda optimizer: StepLR(optimizer, 1)."
        )
    if isinstance(scheduler, ReduceLROnPlateau):
        raise InputError(
            "scheduler=ReduceLROnPlateau needs a metric at each of its steps; leave scheduler= out and call "
            "scheduler.step(metric) yourself after trainer.step or an evaluation."
        )
    owner = getattr(scheduler, "optimizer", optimizer)
    if owner is not optimizer:
        raise InputError(
            f"the scheduler given acts on another optimizer (a {type(owner).__name__}) than the one that is trained by. "
            "Give that optimizer too (optimizer=opt, scheduler=sched), or a function: "
            "scheduler=lambda optimizer: StepLR(optimizer, 1)."
        )
    return scheduler
