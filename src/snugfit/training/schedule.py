"""The learning rate over a run: a factor of each group's own rate, computed from the step alone, so resuming is free."""

from __future__ import annotations

import math

from snugfit.errors import InputError
from snugfit.workload import Workload


def check_schedule(workload: Workload) -> None:
    """Raises where the schedule cannot be computed.

    Args:
        workload: The training settings.

    Raises:
        InputError: The schedule ends at a step that is not known, or the warm-up is longer than the run.
    """
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

    Args:
        step: Updates done before this one, from 0.
        workload: Its schedule, `warmup_steps` and `max_steps`.

    Returns:
        A factor from 0 to 1.
    """
    if step < workload.warmup_steps:
        return (step + 1) / (workload.warmup_steps + 1)
    if workload.lr_schedule == "constant":
        return 1.0
    assert workload.max_steps is not None
    share = min(1.0, (step - workload.warmup_steps) / max(1, workload.max_steps - workload.warmup_steps))
    return 0.5 * (1 + math.cos(math.pi * share)) if workload.lr_schedule == "cosine" else 1 - share
