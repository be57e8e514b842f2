"""A learning rate schedule in DeepSpeed's config, equal to ours at every step. Imports no torch.

DeepSpeed's schedules count from `last_batch_iteration`: the first update takes the optimizer's own rate, and the s-th one
after it what the schedule says for `last_batch_iteration + s`. Ours warms up by (s + 1) / (W + 1), which is theirs of W + 1
steps begun at 1; the first rate is written into the optimizer. They take two steps of warm-up or more, so without one the
count begins behind theirs.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from snugfit.workload import Workload

_LEAST_WARMUP = 2
"""Steps that DeepSpeed's schedules warm up at least (`max(2, warmup_num_steps)`)."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """How the learning rate goes."""

    first: float
    """What the first update takes, as a share of the learning rate."""
    scheduler: dict[str, Any] | None
    """DeepSpeed's `scheduler`; None where the rate stays."""


def schedule_problem(workload: Workload) -> str | None:
    """Returns why DeepSpeed has no such schedule; None where it has.

    Args:
        workload: Its `lr_schedule`, `warmup_steps` and `max_steps`.
    """
    kind, warmup, steps = workload.lr_schedule, workload.warmup_steps, workload.max_steps
    if kind != "constant" and steps is None:
        return f"lr_schedule={kind} ends with the run, and the number of steps is unknown; give --max-steps."
    if kind != "constant" and steps is not None and warmup >= steps:
        return f"warmup_steps={warmup} is all of the {steps} steps of the run; give fewer."
    if kind == "cosine" and warmup:
        return (
            f"lr_schedule=cosine with warmup_steps={warmup}: DeepSpeed's WarmupCosineLR takes the first update at a rate of "
            "0, or at the full one. Give --lr-schedule linear or --warmup-steps 0; or --by-hand lr_schedule, and "
            "deepspeed.initialize(lr_scheduler=...) a scheduler of torch."
        )
    return None


def schedule_of(workload: Workload, lr: float) -> Schedule:
    """Returns a schedule that `schedule_problem` has nothing against.

    Args:
        workload: As there.
        lr: The learning rate at its highest.
    """
    kind, warmup, steps = workload.lr_schedule, workload.warmup_steps, workload.max_steps or 0
    if kind == "constant" and not warmup:
        return Schedule(first=1.0, scheduler=None)
    theirs = max(_LEAST_WARMUP, warmup + 1)
    ahead = theirs - warmup
    """How far their count is ahead of our steps."""
    common: dict[str, Any] = {"warmup_num_steps": theirs, "warmup_type": "linear"}
    if kind == "cosine":
        # Their cosine is one step old when the warm-up ends.
        ends = {"warmup_min_ratio": 0.0, "cos_min_ratio": 0.0, "total_num_steps": steps + theirs}
        params = {**common, **ends, "last_batch_iteration": theirs - 1}
        return Schedule(first=1.0, scheduler={"type": "WarmupCosineLR", "params": params})
    common |= {"warmup_min_lr": 0.0, "warmup_max_lr": lr, "last_batch_iteration": ahead}
    first = 1 / (warmup + 1)
    if kind == "constant":
        return Schedule(first=first, scheduler={"type": "WarmupLR", "params": common})
    params = {**common, "total_num_steps": steps + ahead}
    return Schedule(first=first, scheduler={"type": "WarmupDecayLR", "params": params})
