"""Events of torch's allocators: the CPU's from its profiler, asked for memory alone, a card's from its memory history."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch._C._autograd import _disable_profiler, _enable_profiler, _prepare_profiler
from torch._C._profiler import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    RecordScope,
    _ExperimentalConfig,
    _ExtraFields_Allocation,
)

_CPU = torch.device("cpu")
_LOG_LEVEL, _SILENT = "KINETO_LOG_LEVEL", "6"
"""Log level above which the profiler's library writes nothing to stderr."""


def watched(run: Callable[[], Any]) -> tuple[Any, list[tuple[int, int]]]:
    """Runs a function; returns its result and the events of the CPU allocator (about 0.4 ms more)."""
    start_allocator_events()
    try:
        result = run()
    finally:
        events = stop_allocator_events()
    return result, events


def start_allocator_events() -> None:
    """Makes torch's profiler record the CPU allocator's events and nothing else; one at a time in a process."""
    config = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
    activities = {ProfilerActivity.CPU}
    before = os.environ.get(_LOG_LEVEL)
    os.environ[_LOG_LEVEL] = before or _SILENT
    try:
        _prepare_profiler(config, activities)
        # A scope that no operator has: operators pass unrecorded, memory events are always reported.
        _enable_profiler(config, activities, {RecordScope.BUILD_FEATURE})  # type: ignore[call-arg]
    finally:
        if before is None:
            del os.environ[_LOG_LEVEL]


def stop_allocator_events() -> list[tuple[int, int]]:
    """Returns the events since the start, in order: bytes (negative when freed) and address."""
    found: list[tuple[int, int, int]] = []
    left = list(_disable_profiler().experimental_event_tree())
    while left:
        event = left.pop()
        left.extend(event.children)
        fields: Any = event.extra_fields
        if isinstance(fields, _ExtraFields_Allocation) and fields.device == _CPU:
            found.append((event.start_time_ns, fields.alloc_size, fields.ptr))
    found.sort(key=lambda one: one[0])
    return [(nbytes, address) for _, nbytes, address in found]


def start_cuda_history(device: torch.device, most: int) -> None:
    """Makes torch keep at most so many events of a card's allocator, without stacks, from now on."""
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=most, device=device, clear_history=True)


def cuda_history(device: torch.device) -> list[dict[str, Any]]:
    """Returns the kept events of a card's allocator."""
    found: list[dict[str, Any]] = torch.cuda.memory._snapshot(device)["device_traces"][device.index or 0]
    return found


def stop_cuda_history(device: torch.device) -> None:
    """Ends what `start_cuda_history` began."""
    torch.cuda.memory._record_memory_history(None, device=device)
