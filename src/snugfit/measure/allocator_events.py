"""Every allocation and release of torch's CPU allocator, summed up to a peak: exact and the same in every repeat.

The events come from torch's own profiler, asked for memory alone: no operator is recorded, so a step of two thousand
events costs about 10 ms more and a few hundred KiB. Temporaries inside operators are seen; memory that torch does not
allocate (files mapped in, shared memory of loader processes, scratch buffers of oneDNN) is not, nor what threads of a
library's own allocate and release: gathered weights that gloo's threads let go of count as alive.
"""

from __future__ import annotations

import atexit
import functools
import gc
from collections.abc import Iterable, Sequence

import torch

from snugfit.private_torch import allocators


def run_through(sizes: Iterable[int], balance_bytes: int = 0) -> tuple[int, int]:
    """Returns the bytes alive after the last event, and the most alive at one time.

    Args:
        sizes: Bytes of each event in order, negative for a release.
        balance_bytes: Bytes alive before the first event.
    """
    peak = balance_bytes
    for size in sizes:
        balance_bytes += size
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
        allocators.start_allocator_events()
        self.recording = True
        # torch crashes when the interpreter ends under an open profiler, as after an error.
        atexit.register(self.stop)

    def stop(self) -> None:
        """Closes the window and adds its events up."""
        if not self.recording:
            return
        self.recording = False
        atexit.unregister(self.stop)
        self.take([nbytes for nbytes, _ in allocators.stop_allocator_events()])

    def take(self, sizes: Sequence[int]) -> None:
        """Adds up the bytes of each event of a window, in order."""
        self.balance_bytes, peak_bytes = run_through(sizes, self.balance_bytes)
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
    """Does one small training step, opens one window and collects garbage: what any run needs is there, and no more.

    The first optimizer step imports large parts of torch, the first window loads the profiler's library, and the first
    matmuls of a common size let the matmul library take its packing buffers (about 10 MB, kept for good). None of that
    belongs to the run that is measured. Draws no random numbers; takes a few tenths of a second, once a process.
    """
    first_step(torch.get_num_threads())
    _first_window()
    # What an earlier window of this process allocated, and only the collector frees, would be subtracted from the next.
    gc.collect()


@functools.cache
def first_step(threads: int) -> None:
    """Does one small training step, once a process and number of threads: each has packing buffers of its own."""
    with torch.enable_grad():
        rows, inner, outer = 1024, 512, 2048
        weights = [torch.nn.Parameter(torch.zeros(outer, inner)), torch.nn.Parameter(torch.zeros(inner, outer))]
        optimizer = torch.optim.AdamW(weights)
        hidden = torch.nn.functional.linear(torch.zeros(rows, inner), weights[0])
        torch.nn.functional.linear(hidden, weights[1]).square().mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


@functools.cache
def _first_window() -> None:
    events = AllocatorEvents()
    events.start()
    events.stop()
