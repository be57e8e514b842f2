"""The learning rate over a run: a factor of each group's own rate, computed from the step alone, so resuming is free.

Or a scheduler of the caller's: any of `torch.optim.lr_scheduler`, of transformers, or one written alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from snugfit.errors import InputError
from snugfit.workload import Workload


def check_schedule(workload: Workload) -> None:
    """Raises `InputError` where the schedule ends at an unknown step, or the warm-up is longer than the run."""
    if workload.lr_schedule != "constant" and workload.max_steps is None:
        raise InputError(
            f"lr_schedule={workload.lr_schedule!r} ends with the run, and the number of steps is unknown; give max_steps."
        )
    if workload.max_steps is not None and workload.warmup_steps > workload.max_steps:
        raise InputError(
            f"warmup_steps is {workload.warmup_steps}, more than the {workload.max_steps} steps of the run; give fewer."
        )


def lr_factor(step: int, workload: Workload) -> float:
    """Returns what the learning rate is multiplied with.

    `step`: updates done before this one, from 0.
    A factor from 0 to 1.
    """
    if step < workload.warmup_steps:
        return (step + 1) / (workload.warmup_steps + 1)
    if workload.lr_schedule == "constant":
        return 1.0
    assert workload.max_steps is not None
    share = min(1.0, (step - workload.warmup_steps) / max(1, workload.max_steps - workload.warmup_steps))
    return 0.5 * (1 + math.cos(math.pi * share)) if workload.lr_schedule == "cosine" else 1 - share


SchedulerArgument = Any | Callable[[Optimizer], Any]


def scheduler_of(given: SchedulerArgument | None, optimizer: Optimizer) -> Any | None:
    """Returns the scheduler that is stepped after each update; `InputError` for one that would not work here.

    `given`: a scheduler of this optimizer, a function from the optimizer to one, or None.
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
