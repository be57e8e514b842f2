"""What the allocator really did during a profile: the CPU allocator's or the CUDA caching allocator's own events.

Both give the same: an ordered list of bytes taken and given back, in which the profile's marks stand. Events are summed up
at every `cut` (after each step), so that buffers stay small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from snugfit import private_torch
from snugfit.measure.allocator_events import AllocatorEvents
from snugfit.profiler.temporaries import MARK_BYTES, cut_at_marks

CUDA_EVENTS = 1_000_000
"""Events that torch keeps between two cuts; older ones are lost."""


class Truth:
    """Common part: adds events up and keeps the highest point before each mark."""

    def __init__(self, *, keep: bool = False) -> None:
        """Has seen nothing.

        Args:
            keep: Whether every event is kept, marks included, beside what is summed up.
        """
        self.kept: list[int] | None = [] if keep else None
        """Bytes of every event in order; None unless they are kept."""
        self.peaks: list[int] = []
        """The most bytes alive up to each mark since the one before; 0 where that is not known."""
        self.lost_marks = 0
        """Operators whose events could not be told apart."""
        self.peak_bytes = 0
        """Most bytes alive at any time."""
        self._balance = self._rest = self._open_marks = 0

    def take(self, sizes: Sequence[int]) -> None:
        """Adds the events of one window.

        Args:
            sizes: Bytes of each event in order.
        """
        if self.kept is not None:
            self.kept.extend(sizes)
        found = cut_at_marks(sizes, self._balance, self._rest)
        self._balance, self._rest = found.balance_bytes, found.rest_peak
        self.peak_bytes = max(self.peak_bytes, found.rest_peak, *found.peaks)
        if len(found.peaks) == self._open_marks:
            self.peaks.extend(found.peaks)
        else:
            self.peaks.extend([0] * self._open_marks)
            self.lost_marks += self._open_marks
        self._open_marks = 0

    def mark(self) -> None:
        """Marks the end of an operator."""
        torch.UntypedStorage(MARK_BYTES, device=self.device)  # type: ignore[no-untyped-call]
        self._open_marks += 1

    device = torch.device("cpu")


class CpuTruth(Truth):
    """The events of torch's CPU allocator, from its profiler."""

    def start(self) -> None:
        """Begins to listen."""
        self._events = AllocatorEvents()
        self._events.start()

    def cut(self) -> None:
        """Adds up what is there and goes on."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """Adds up what is there and ends."""
        if not self._events.recording:
            return
        self._events.recording = False
        self.take([nbytes for nbytes, _ in private_torch.stop_allocator_events()])


class CudaTruth(Truth):
    """The events of the CUDA caching allocator, from its memory history, without stacks."""

    def __init__(self, device: torch.device, *, keep: bool = False) -> None:
        """Takes what is allocated now as the beginning.

        Args:
            device: The CUDA device, with its index.
            keep: Whether every event is kept.
        """
        super().__init__(keep=keep)
        self.device = device
        self._balance = self._rest = int(torch.cuda.memory_stats(device).get("requested_bytes.all.current", 0))

    def start(self) -> None:
        """Begins to listen."""
        private_torch.start_cuda_history(self.device, CUDA_EVENTS)

    def cut(self) -> None:
        """Adds up what is there and goes on."""
        self._read()
        self.start()

    def stop(self) -> None:
        """Adds up what is there and ends."""
        self._read()
        private_torch.stop_cuda_history(self.device)

    def _read(self) -> None:
        self.take(event_sizes(private_torch.cuda_history(self.device)))


def event_sizes(entries: Sequence[dict[str, Any]]) -> list[int]:
    """Returns the bytes of each event of a CUDA memory history.

    Args:
        entries: One device's list of `device_traces` in a memory snapshot.

    Returns:
        Positive for an allocation, negative for a release that has taken effect; segments are left out.
    """
    signs = {"alloc": 1, "free_completed": -1}
    return [signs[entry["action"]] * entry["size"] for entry in entries if entry["action"] in signs]
