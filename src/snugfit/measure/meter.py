"""The meter of one training run: what it used, whatever the device.

On the CPU it counts all tensors that the training owns at its peak, weights and state included, from before the model is
built, and beside it the process's peak above its baseline; on a card the allocator's peaks and what the driver says.

Both meters have these hooks: `start(model=None)` once, before the model is built, or with one that is there already and
whose tensors count from the beginning; `built()`, after which what of it was let go counts no longer;
`after_step(steps_done)`, `before_evaluation()`, `after_evaluation()`; `with changing():` around a change of how the run
trains, behind which it is looked at closely again; `recent_peak_bytes()`, the most tensor bytes since the
last change (None on a card); and `result(host_tensor_bytes)` at the end, with the most bytes that the recipe kept in its
host pool.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from snugfit.device_kinds import CPU, KINDS, SIMULATED, kind_of, memory_in_use
from snugfit.errors import InputError
from snugfit.measure.card import CardMeter
from snugfit.measure.cpu import CpuMeter
from snugfit.process_memory import read_process_memory

Meter = CpuMeter | CardMeter


def meter_for(device: torch.device | str, *, window_steps: int = 3) -> Meter:
    """Returns the meter of a run that is about to begin.

    Args:
        device: Where the run trains: the CPU, or a card whose memory torch counts.
        window_steps: First steps that are looked at closely, at least 1; later ones repeat them.

    Raises:
        InputError: The device is none of these, or there is no step to look at.
    """
    device = torch.device(device)
    if window_steps < 1:
        raise InputError(f"window_steps is {window_steps}; it must be at least 1.")
    if device.type == CPU:
        return CpuMeter(window_steps=window_steps)
    if kind_of(device).counted:
        return CardMeter(device, window_steps=window_steps)
    known = ", ".join(name for name, kind in KINDS.items() if kind.counted and name != SIMULATED)
    raise InputError(
        f"device {device.type!r} cannot be measured: torch does not count its memory. Use {CPU} or {known}."
    )


def memory_reader(device: torch.device) -> Callable[[], tuple[int, int] | None]:
    """Returns a function that reads how much memory a training takes, as the system counts it.

    Args:
        device: Where the model is trained.

    Returns:
        Function giving (now, peak) in bytes: what torch has allocated on a card; on the CPU the process's resident bytes
        above those at this call, so call it before the model is built; None where unknown.
    """
    if device.type != CPU:
        return partial(memory_in_use, device)
    baseline = read_process_memory()

    def above_baseline() -> tuple[int, int] | None:
        now = read_process_memory()
        if now is None or baseline is None:
            return None
        return max(0, now.rss_bytes - baseline.rss_bytes), max(0, now.peak_rss_bytes - baseline.rss_bytes)

    return above_baseline
