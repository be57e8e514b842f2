"""How fast this machine's processor is: a calibration of about a second, for predicting the time of a run on `cpu`.

Three things are measured as training meets them: matrix products of several sizes, operators over memory of several
sizes (their results freshly allocated, so that page faults count), and what stands around the operators of a step. Functions
such as GELU or softmax are bound by arithmetic on a processor, not by memory, so the common ones are measured each by
itself. The measurement is kept for the process; another number of threads is another machine.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from snugfit.device_kinds import wait_for
from snugfit.measure.processor import busy_clock, this_processor
from snugfit.private_torch import DirectMode
from snugfit.recording.cpu_clock import HostSpeeds, kept_speeds

_REPEATS = 3
_SIDES = (48, 192, 640)
_FOOTPRINTS = (2**14, 2**18, 2**21, 2**24, 2**26)
_SPECIAL_ELEMENTS = 2**18
_BLOCKS, _WIDTH = 4, 16


def host_speeds() -> HostSpeeds:
    """Returns the speeds of this machine with the present number of threads: as calibrated, or measured once a process."""
    processor = this_processor()
    return kept_speeds(processor.in_words(), torch.__version__) or measured_speeds(processor.threads)


@functools.cache
def measured_speeds(threads: int) -> HostSpeeds:
    """Returns the speeds of this machine, measured now; calls of one process share them.

    Args:
        threads: The present number of threads.
    """
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
        empty = _seconds(functools.partial(torch.ops.aten.add.Tensor, torch.ones(1), torch.ones(1)))
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
        forward, backward, parameter = _around_operators(empty)
    return HostSpeeds(
        operator_seconds=forward,
        backward_operator_seconds=backward,
        parameter_seconds=parameter,
        product_rates=tuple(rates),
        dtype_factors=factors,
        byte_seconds=tuple(bytes_),
        operator_factors=weights,
        threads=threads,
        call_seconds=empty,
    )


def _seconds(run: Callable[[], object]) -> float:
    """The best of a few runs after one to warm up; short ones are looped until the clock can tell."""
    clock = busy_clock()
    run()
    begin = clock()
    run()
    loops = max(1, min(200, int(0.001 / max(clock() - begin, 1e-7))))
    best = float("inf")
    for _ in range(_REPEATS):
        begin = clock()
        for _ in range(loops):
            run()
        best = min(best, (clock() - begin) / loops)
    return best


class _Block(nn.Module):
    """A block of a transformer, as people write it: modules, views and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.wide, self.narrow = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        samples, tokens, width = inputs.shape
        heads = self.qkv(self.before(inputs)).reshape(samples, tokens, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads.unbind(0)).transpose(1, 2).reshape(samples, tokens, width)
        inputs = inputs + self.out(mixed)
        return torch.add(inputs, self.narrow(F.gelu(self.wide(self.between(inputs)))))


class _Calls(DirectMode):  # type: ignore[no-untyped-call]
    """Collects the operators that compute."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Callable[[], object]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.found.append(functools.partial(func, *args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))


def issue_seconds(device: torch.device) -> float:
    """Returns the host's time for an operator in forward or backward of a model, also where a card computes meanwhile.

    Args:
        device: Where the model is.
    """
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(*[_Block() for _ in range(_BLOCKS)]).to(device)
    inputs = torch.ones(1, 4, _WIDTH, device=device)
    best = float("inf")
    with torch.enable_grad():
        with _Calls() as calls:
            model(inputs).sum().backward()
        for _ in range(10 * _REPEATS):
            wait_for(device)
            begin = time.perf_counter()
            model(inputs).sum().backward()
            best = min(best, time.perf_counter() - begin)
    return best / len(calls.found)


def _around_operators(call_seconds: float) -> tuple[float, float, float]:
    """Returns what stands around an operator in forward and in backward, and around a parameter in an update.

    It is the time of each pass less that of its operators called one by one.
    """
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(*[_Block() for _ in range(_BLOCKS)])
    inputs = torch.ones(1, 4, _WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    passes: list[Callable[[], object]] = [
        lambda: model(inputs).sum(),
        lambda: model(inputs).sum().backward(),
        lambda: (model(inputs).sum().backward(), optimizer.step(), optimizer.zero_grad()),
    ]
    seconds, operators, counts = [], [], []
    with torch.enable_grad():
        for run in passes:
            seconds.append(_seconds(run))
            with _Calls() as calls:
                run()
            with torch.no_grad():
                operators.append(sum(max(_seconds(call) - call_seconds, 0.0) for call in calls.found))
            counts.append(len(calls.found))
            optimizer.zero_grad()
    forward = (seconds[0] - operators[0]) / counts[0]
    backward = (seconds[1] - seconds[0] - operators[1] + operators[0]) / (counts[1] - counts[0])
    update = (seconds[2] - seconds[1] - operators[2] + operators[1]) / len(list(model.parameters()))
    return max(forward, call_seconds), max(backward, call_seconds), max(update, 0.0)
