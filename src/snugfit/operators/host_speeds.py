"""How fast this machine's processor is: about a second of measuring, for predicting the time of a run on `cpu`.

Measured are matrix products of several sizes and types, operators over memory of several sizes (their results freshly
allocated, so that page faults count), and what stands around an operator of a model. That orders recipes; where two
promise about as much, the run itself finds out which is faster (`runs/tuning.py`).
"""

from __future__ import annotations

import functools

import torch

from snugfit.operators.issue_seconds import issue_seconds
from snugfit.operators.operator_seconds import best_seconds
from snugfit.processor import this_processor
from snugfit.recording.cpu_clock import HostSpeeds, kept_speeds

_SIDES = (48, 192, 640)
_FOOTPRINTS = (2**10, 2**14, 2**18, 2**21, 2**24, 2**26)


def host_speeds() -> HostSpeeds:
    """Returns the speeds of this machine with the present number of threads: as calibrated, or measured once a process."""
    processor = this_processor()
    return kept_speeds(processor.in_words(), torch.__version__) or measured_speeds(processor.threads)


@functools.cache
def measured_speeds(threads: int) -> HostSpeeds:
    """Returns the speeds of this machine, measured now with so many threads; calls of one process share them."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        single = {side: _product_seconds(side, torch.float32) for side in _SIDES}
        middle = _SIDES[1]
        memory = []
        for size in _FOOTPRINTS:
            a, b = torch.ones(size // 12), torch.ones(size // 12)
            memory.append((float(size), best_seconds(functools.partial(torch.add, a, b))))
        return HostSpeeds(
            operator_seconds=max(issue_seconds(torch.device("cpu")) - memory[0][1], 0.0),
            product_rates=tuple((2.0 * side**3, 2.0 * side**3 / seconds) for side, seconds in single.items()),
            dtype_factors={
                str(dtype).removeprefix("torch."): single[middle] / _product_seconds(middle, dtype)
                for dtype in (torch.float64, torch.bfloat16, torch.float16)
            },
            memory_seconds=tuple(memory),
            threads=threads,
        )


def _product_seconds(side: int, dtype: torch.dtype) -> float:
    a, b = torch.randn(side, side).to(dtype), torch.randn(side, side).to(dtype)
    return best_seconds(functools.partial(torch.mm, a, b))
