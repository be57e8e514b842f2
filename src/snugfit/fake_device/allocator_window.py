"""A window through which one call is watched: every block that torch's CPU allocator gave and took back, in order.

torch's own profiler reports the blocks, asked for memory alone. Opening and closing a window costs about 0.4 ms, so every
operator can have one of its own. Private torch interfaces of the profiler that the simulator needs are used here only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._C._autograd import _disable_profiler, _enable_profiler, _prepare_profiler
from torch._C._profiler import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    RecordScope,
    _EventType,
    _ExperimentalConfig,
)

_CPU = torch.device("cpu")
_LOG_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "6"
"""Log level above which the profiler's library writes nothing to stderr."""


class Block(NamedTuple):
    """One event of the allocator."""

    nbytes: int
    """Bytes given, negative for bytes taken back."""
    address: int
    """Where the block lies."""


def watched(run: Callable[[], Any]) -> tuple[Any, list[Block]]:
    """Runs a function and returns what the CPU allocator did meanwhile.

    Args:
        run: The function.

    Returns:
        What it returned, and the events in order.
    """
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
    try:
        result = run()
    finally:
        window = _disable_profiler()
    return result, _blocks(window)


def _blocks(window: Any) -> list[Block]:
    found: list[tuple[int, Block]] = []
    left = list(reversed(window.experimental_event_tree()))
    while left:
        event = left.pop()
        left.extend(reversed(event.children))
        if event.tag == _EventType.Allocation and event.extra_fields.device == _CPU:
            fields = event.extra_fields
            found.append((event.start_time_ns, Block(fields.alloc_size, fields.ptr)))
    found.sort(key=lambda one: one[0])
    return [block for _, block in found]
