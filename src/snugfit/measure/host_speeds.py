"""How fast this machine's processor is: a calibration of about a second, for predicting the time of a run on `cpu`.

Three things are measured as training meets them: matrix products of several sizes, operators over memory of several
sizes (their results freshly allocated, so that page faults count), and what an operator costs that has next to nothing
to do. Functions such as GELU or softmax are bound by arithmetic on a processor, not by memory, so the common ones are
measured each by itself. The measurement is kept for the process; another number of threads is another machine.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from snugfit.recording.cpu_clock import HostSpeeds

_REPEATS = 3
_SIDES = (48, 192, 640)
_FOOTPRINTS = (2**14, 2**18, 2**21, 2**24, 2**26)
_SPECIAL_ELEMENTS = 2**18
_LAYERS = 8
_OPERATORS_OF_CALIBRATION = 12 * _LAYERS + 2
"""Operators that compute in forward and backward of those layers: three forward, five backward and four gradients that
add up in each, and the sum with its backward. A test counts them."""


def host_speeds() -> HostSpeeds:
    """Returns the speeds of this machine with the present number of threads, measured once a process."""
    return _measured(torch.get_num_threads())


@functools.cache
def _measured(threads: int) -> HostSpeeds:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        rates = []
        for side in _SIDES:
            a, b = torch.randn(side, side), torch.randn(side, side)
            rates.append((2.0 * side**3, 2.0 * side**3 / _seconds(functools.partial(torch.mm, a, b))))
        factors = {}
        side = _SIDES[1]
        single = _seconds(functools.partial(torch.mm, torch.randn(side, side), torch.randn(side, side)))
        for dtype in (torch.float64, torch.bfloat16, torch.float16):
            a, b = torch.randn(side, side).to(dtype), torch.randn(side, side).to(dtype)
            factors[str(dtype).removeprefix("torch.")] = single / _seconds(functools.partial(torch.mm, a, b))
        empty = _seconds(functools.partial(torch.add, torch.ones(1), torch.ones(1)))
        bytes_ = []
        for size in _FOOTPRINTS:
            a, b = torch.ones(size // 12), torch.ones(size // 12)
            spent = _seconds(functools.partial(torch.add, a, b))
            # Of a small one nearly all is the operator's own time, and what is left would be noise.
            bytes_.append((float(size), max(spent - empty, spent / 10) / size))
        wide = torch.randn(_SPECIAL_ELEMENTS // 512, 512)
        scale = torch.ones(512)
        plain = _seconds(functools.partial(torch.add, wide, wide)) / 3
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
        weights = {name: _seconds(run) / moved / plain for name, (run, moved) in special.items()}
    return HostSpeeds(
        operator_seconds=_operator_seconds(),
        product_rates=tuple(rates),
        dtype_factors=factors,
        byte_seconds=tuple(bytes_),
        operator_factors=weights,
        threads=threads,
    )


def _seconds(run: Callable[[], object]) -> float:
    """The best of a few runs after one to warm up; short ones are looped until the clock can tell."""
    run()
    begin = time.perf_counter()
    run()
    loops = max(1, min(200, int(0.001 / max(time.perf_counter() - begin, 1e-7))))
    best = float("inf")
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        for _ in range(loops):
            run()
        best = min(best, (time.perf_counter() - begin) / loops)
    return best


def _operator_seconds() -> float:
    """Time of an operator on next to nothing, with its modules and its backward, as a training step runs it."""
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(
            *[module for _ in range(_LAYERS) for module in (nn.LayerNorm(4), nn.Linear(4, 4), nn.GELU())]
        )
    inputs = torch.ones(2, 4)

    def run() -> None:
        model(inputs).sum().backward()

    with torch.enable_grad():
        return _seconds(run) / _OPERATORS_OF_CALIBRATION
