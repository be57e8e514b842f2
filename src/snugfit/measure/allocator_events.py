"""Every allocation and release of torch's CPU allocator, summed up to a peak: exact and the same in every repeat.

The events come from torch's own profiler, asked for memory alone: no operator is recorded, so a step of two thousand
events costs about 10 ms more and a few hundred KiB. Temporaries inside operators are seen; memory that torch does not
allocate (files mapped in, shared memory of loader processes, scratch buffers of oneDNN) is not.

Private torch interfaces of this room are used in this file only.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable

import torch
from torch._C._autograd import DeviceType, _disable_profiler, _enable_profiler, _prepare_profiler
from torch._C._profiler import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    RecordScope,
    _ExperimentalConfig,
)

_SILENT_KINETO = "6"
"""Log level above which the profiler's library writes nothing to stderr."""


def peak_of(events: Iterable[tuple[int, ...]], balance_bytes: int = 0) -> int:
    """Returns the most bytes alive at one time.

    Args:
        events: `(time, bytes)`: bytes are positive for an allocation, negative for a release.
        balance_bytes: Bytes alive before the first event.

    Returns:
        The peak, in bytes; `balance_bytes` when nothing is ever added.
    """
    return _run_through(events, balance_bytes)[1]


def _run_through(events: Iterable[tuple[int, ...]], balance_bytes: int) -> tuple[int, int]:
    """Returns the bytes alive after the last event and the peak."""
    peak = balance_bytes
    for _, size_bytes in sorted(events, key=lambda event: event[0]):
        balance_bytes += size_bytes
        peak = max(peak, balance_bytes)
    return balance_bytes, peak


class AllocatorEvents:
    """Sums up the CPU allocator's events over one or more windows of a run.

    A release of memory that was allocated outside every window is not reported by torch, so a window must start where
    little is about to be released: before the model is built, or between two steps.
    """

    def __init__(self) -> None:
        self.balance_bytes = 0
        """Bytes alive at the last cut, as far as they were allocated in a window."""
        self.peak_bytes = 0
        """Most bytes alive in any window so far."""
        self.recent_peak_bytes = 0
        """Most bytes alive since `forget`, in any window."""
        self.recording = False
        """Whether a window is open."""

    def start(self) -> None:
        """Opens a window; the balance goes on from where the last one ended."""
        config = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
        activities = {ProfilerActivity.CPU}
        before = os.environ.get("KINETO_LOG_LEVEL")
        os.environ["KINETO_LOG_LEVEL"] = before or _SILENT_KINETO
        try:
            _prepare_profiler(config, activities)
            # A scope that no operator has: operators pass unrecorded, memory events are always reported.
            _enable_profiler(config, activities, {RecordScope.BUILD_FEATURE})  # type: ignore[call-arg]
        finally:
            if before is None:
                del os.environ["KINETO_LOG_LEVEL"]
        self.recording = True
        # torch crashes when the interpreter ends under an open profiler, as after an error.
        atexit.register(self.stop)

    def stop(self) -> None:
        """Closes the window and adds its events up."""
        if not self.recording:
            return
        self.recording = False
        atexit.unregister(self.stop)
        events = [
            (event.start_ns(), event.nbytes())  # type: ignore[attr-defined]
            for event in _disable_profiler().events()
            if event.name() == "[memory]" and event.device_type() == DeviceType.CPU
        ]
        self.balance_bytes, peak_bytes = _run_through(events, self.balance_bytes)
        self.peak_bytes = max(self.peak_bytes, peak_bytes)
        self.recent_peak_bytes = max(self.recent_peak_bytes, peak_bytes)

    def cut(self) -> None:
        """Adds up what is there and goes on, so that the profiler's buffer stays small."""
        self.stop()
        self.start()

    def forget(self) -> None:
        """Lets the recent peak begin again at what is alive now; call it when a window was just cut or closed."""
        self.recent_peak_bytes = self.balance_bytes


def warm_up() -> None:
    """Does one small training step under the profiler, so that code and buffers that any run needs are there.

    The first optimizer step imports large parts of torch, the first window loads the profiler's library, and the first
    matmuls of a common size let the matmul library take its packing buffers (about 10 MB, kept for good). None of that
    belongs to the run that is measured. Draws no random numbers; takes a few tenths of a second.
    """
    events = AllocatorEvents()
    events.start()
    with torch.enable_grad():
        rows, inner, outer = 1024, 512, 2048
        weights = [torch.nn.Parameter(torch.zeros(outer, inner)), torch.nn.Parameter(torch.zeros(inner, outer))]
        optimizer = torch.optim.AdamW(weights)
        hidden = torch.nn.functional.linear(torch.zeros(rows, inner), weights[0])
        torch.nn.functional.linear(hidden, weights[1]).square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    events.stop()
