"""How fast this machine's card is: products, convolutions, copies, launches, the link to the host, and what CUDA takes.

The same code times a processor, which has no link to a host and takes no context: that is how it is tested.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

from snugfit.device_kinds import CPU, CUDA, kind_of, module_of, wait_for
from snugfit.measure.nvml import process_bytes
from snugfit.operators.issue_seconds import issue_seconds

PRODUCTS = ("float32", "tf32", "float16", "bfloat16")
"""Types in which a large product is timed; tf32 is float32 with that setting, and only cards have it."""
_SIDE, _COPY_BYTES = 8192, 2**31
_CPU_SIDE, _CPU_COPY_BYTES = 640, 2**26
_LINK_BYTES = 2**29
_CALLS = 1000
_IMAGES, _CPU_IMAGES, _CHANNELS, _PIXELS = 64, 4, 64, 56


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CardSpeeds:
    """Measured speeds of a card."""

    product_rates: Mapping[str, float]
    """FLOP/s of a large matrix product of random numbers, by type."""
    convolution_rates: Mapping[str, float]
    """FLOP/s of a 3 x 3 convolution with channels last, by type."""
    bytes_per_second: float
    """What a long copy on the card reads and writes."""
    operator_seconds: float
    """Host time of an operator in forward or backward of a model: modules, views, autograd and launch."""
    kernel_seconds: float | None
    """Time on the card of a kernel without work; None on a processor."""
    link_bytes_per_second: float | None
    """Copies between page-locked host memory and the card, the slower way; None without such memory."""
    context_bytes: int | None
    """What the process has in use on the card beside the allocator's segments; None where nobody says."""


def card_speeds(device: torch.device) -> CardSpeeds:
    """Measures a device; on a card in about half a minute.

    Args:
        device: Which.

    Returns:
        Its speeds.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        operator, kernel = issue_seconds(device), kernel_seconds(device)
        return CardSpeeds(
            product_rates=product_rates(device),
            convolution_rates=convolution_rates(device),
            bytes_per_second=copy_rate(device),
            operator_seconds=operator,
            kernel_seconds=kernel,
            link_bytes_per_second=min(link_rates(device), default=None),
            context_bytes=context_bytes(device),
        )


def median_seconds(run: Callable[[], object], device: torch.device, repeats: int = 10) -> float:
    """Returns the median time of a call.

    Args:
        run: What is timed.
        device: Where it runs: timed by events on a card, by the clock on a processor.
        repeats: Calls that are timed, after two to warm up.

    Returns:
        Seconds.
    """
    module = module_of(device)
    for _ in range(2):
        run()
    times = []
    for _ in range(repeats):
        if module is None:
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
        else:
            begin, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
            wait_for(device)
            begin.record()
            run()
            end.record()
            wait_for(device)
            times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def product_rates(device: torch.device) -> dict[str, float]:
    """Returns FLOP/s of a large product of random numbers by type."""
    side = _CPU_SIDE if device.type == CPU else _SIDE
    rates: dict[str, float] = {}
    for name in _types(device):
        with _in_type(name) as dtype:
            left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
            rates[name] = 2 * side**3 / median_seconds(functools.partial(torch.mm, left, right), device, 5)
    return rates


def convolution_rates(device: torch.device) -> dict[str, float]:
    """Returns FLOP/s of a 3 x 3 convolution by type, channels last."""
    samples = _CPU_IMAGES if device.type == CPU else _IMAGES
    flops = 2 * samples * _PIXELS**2 * _CHANNELS**2 * 9
    rates: dict[str, float] = {}
    for name in _types(device):
        with _in_type(name) as dtype:
            images = torch.randn(samples, _CHANNELS, _PIXELS, _PIXELS, device=device).to(dtype)
            images = images.to(memory_format=torch.channels_last)
            kernel = torch.randn(_CHANNELS, _CHANNELS, 3, 3, device=device).to(dtype)
            run = functools.partial(F.conv2d, images, kernel.to(memory_format=torch.channels_last), padding=1)
            rates[name] = flops / median_seconds(run, device, 5)
    return rates


def copy_rate(device: torch.device) -> float:
    """Returns the bytes a second that a copy on the device reads and writes."""
    count = (_CPU_COPY_BYTES if device.type == CPU else _COPY_BYTES) // 4
    source, target = torch.randn(count, device=device), torch.empty(count, device=device)
    return 2 * 4 * count / median_seconds(functools.partial(target.copy_, source), device)


def kernel_seconds(device: torch.device) -> float | None:
    """Returns the time on the card of an addition of 1024 numbers, launched by a graph; None where there are no graphs."""
    if device.type != CUDA:
        return None
    small = torch.ones(1024, device=device)
    graph = torch.cuda.CUDAGraph()
    small.add(1.0)
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            small.add(1.0)
    return median_seconds(graph.replay, device, 5) / _CALLS


def link_rates(device: torch.device) -> tuple[float, ...]:
    """Returns the bytes a second from page-locked host memory to the card and back; nothing where there is none."""
    if not kind_of(device).page_locked:
        return ()
    host = torch.empty(_LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(_LINK_BYTES, dtype=torch.uint8, device=device)
    ways: tuple[Any, ...] = (
        lambda: there.copy_(host, non_blocking=True),
        lambda: host.copy_(there, non_blocking=True),
    )
    return tuple(_LINK_BYTES / median_seconds(way, device, 5) for way in ways)


def context_bytes(device: torch.device) -> int | None:
    """Returns what this process has in use on a card beside the allocator's segments; None where nobody says."""
    used = process_bytes(device) if device.type == CUDA else None
    return None if used is None else used - torch.cuda.memory_reserved(device)


def _types(device: torch.device) -> list[str]:
    return [name for name in PRODUCTS if name != "tf32" or device.type == CUDA]


@contextmanager
def _in_type(name: str) -> Iterator[torch.dtype]:
    """Gives the dtype, with products and convolutions of float32 in tf32 where that is asked for."""
    settings: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [one.allow_tf32 for one in settings]
    try:
        for one in settings:
            one.allow_tf32 = name == "tf32"
        yield torch.float32 if name == "tf32" else getattr(torch, name)
    finally:
        for one, value in zip(settings, before, strict=True):
            one.allow_tf32 = value
