"""How fast this machine's processor is: a calibration of a few seconds, for predicting the time of a run on `cpu`.

Three things are measured as training meets them: matrix products of several sizes, operators over memory of several
sizes (their results freshly allocated, so that page faults count), and what stands around the operators of a step. Functions
such as GELU or softmax are bound by arithmetic on a processor, not by memory, so the common ones are measured each by
itself. The measurement is kept for the process; another number of threads is another machine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F

from snugfit.measure.around_operators import around_operators, best_seconds
from snugfit.measure.full_speed import FullSpeed, few_operators_seconds
from snugfit.measure.operator_seconds import seconds_in_a_step
from snugfit.measure.processor import this_processor
from snugfit.recording.cpu_clock import HostSpeeds, kept_speeds

_SIDES = (48, 192, 640)
_FOOTPRINTS = (2**14, 2**18, 2**21, 2**24, 2**26)
_SPECIAL_ELEMENTS = 2**18


def host_speeds() -> HostSpeeds:
    """Returns the speeds of this machine with the present number of threads: as calibrated, or measured once a process."""
    processor = this_processor()
    return kept_speeds(processor.in_words(), torch.__version__) or measured_speeds(processor.threads)


@functools.cache
def measured_speeds(threads: int, patience: float = 0.0) -> HostSpeeds:
    """Returns the speeds of this machine, measured now; calls of one process share them.

    Args:
        threads: The present number of threads.
        patience: Most seconds of waiting for the machine's full speed; a prediction without a calibration waits for nothing.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        few = few_operators_seconds()
        full_speed = FullSpeed(few, patience)
        rates = []
        for side in _SIDES:
            a, b = torch.randn(side, side), torch.randn(side, side)
            rates.append((2.0 * side**3, 2.0 * side**3 / best_seconds(functools.partial(torch.mm, a, b))))
        factors = {}
        side = _SIDES[1]
        single = best_seconds(functools.partial(torch.mm, torch.randn(side, side), torch.randn(side, side)))
        for dtype in (torch.float64, torch.bfloat16, torch.float16):
            a, b = torch.randn(side, side).to(dtype), torch.randn(side, side).to(dtype)
            factors[str(dtype).removeprefix("torch.")] = single / best_seconds(functools.partial(torch.mm, a, b))
        one = functools.partial(torch.ops.aten.add.Tensor, torch.ones(1), torch.ones(1))
        empty = best_seconds(one)
        called = seconds_in_a_step(one, full_speed)
        bytes_ = []
        for size in _FOOTPRINTS:
            a, b = torch.ones(size // 12), torch.ones(size // 12)
            spent = best_seconds(functools.partial(torch.add, a, b))
            # Of a small one nearly all is the operator's own time, and what is left would be noise.
            bytes_.append((float(size), max(spent - empty, spent / 10) / size))
        wide = torch.randn(_SPECIAL_ELEMENTS // 512, 512)
        scale = torch.ones(512)
        plain = best_seconds(functools.partial(torch.add, wide, wide)) / 3
        special: dict[str, tuple[Callable[[], object], int]] = {
            "aten.gelu.default": (functools.partial(F.gelu, wide), 2),
            "aten.gelu_backward.default": (functools.partial(torch.ops.aten.gelu_backward, wide, wide), 3),
            "aten.silu.default": (functools.partial(F.silu, wide), 2),
            "aten.silu_backward.default": (functools.partial(torch.ops.aten.silu_backward, wide, wide), 3),
            "aten._softmax.default": (functools.partial(F.softmax, wide, -1), 2),
            "aten.native_layer_norm.default": (functools.partial(F.layer_norm, wide, (512,), scale, scale), 2),
            "aten.relu.default": (functools.partial(F.relu, wide), 2),
            "aten.native_dropout.default": (functools.partial(torch.native_dropout, wide, 0.1, True), 2),
        }
        weights = {name: best_seconds(run) / moved / plain for name, (run, moved) in special.items()}
        around = around_operators(full_speed)
    return HostSpeeds(
        **around,
        product_rates=tuple(rates),
        dtype_factors=factors,
        byte_seconds=tuple(bytes_),
        operator_factors=weights,
        threads=threads,
        call_seconds=called,
        few_operators_seconds=few,
    )
