"""What the allocator really did during a profile: the CPU allocator's or the CUDA caching allocator's own events.

Both give the same: an ordered list of bytes taken and given back, in which the profile's marks stand. Events are summed up
at every `cut` (after each step), so that buffers stay small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from snugfit.measure.allocator_events import AllocatorEvents
from snugfit.private_torch import allocators
from snugfit.profiler.temporaries import MARK_BYTES, cut_at_marks

CUDA_EVENTS = 1_000_000
"""Events that torch keeps between two cuts; older ones are lost."""


class CpuTruth(AllocatorEvents):
    """The events of the CPU allocator, and the highest point before each mark among them."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.peaks: list[int] = []
        """The most bytes alive up to each mark since the one before; 0 where that is not known."""
        self.lost_marks = 0
        """Operators whose events could not be told apart."""
        self._rest = self._open_marks = 0
        self._elsewhere: list[tuple[int, int]] = []

    def released_elsewhere(self, nbytes: int) -> None:
        """Takes down that another thread has released memory, of which torch's profiler says nothing.

        Gloo's threads do so with what they send, where they are the last to let go of it.
        """
        self._elsewhere.append((self._open_marks, nbytes))

    def _all(self, sizes: Sequence[int]) -> Iterator[int]:
        """Yields the bytes of each event of a window, and those of other threads behind the marks where they came."""
        others, self._elsewhere = self._elsewhere, []
        marks = done = 0
        for size in (0, *sizes):
            yield size
            marks += size == MARK_BYTES
            while done < len(others) and others[done][0] <= marks:
                yield -others[done][1]
                done += 1
        yield from (-nbytes for _, nbytes in others[done:])

    def take(self, sizes: Sequence[int]) -> None:
        """Adds up the bytes of each event of a window, in order."""
        found = cut_at_marks(self._all(sizes) if self._elsewhere else sizes, self.balance_bytes, self._rest)
        self.balance_bytes, self._rest = found.balance_bytes, found.rest_peak
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


class CudaTruth(CpuTruth):
    """The same of the CUDA caching allocator, from its memory history, without stacks."""

    def __init__(self, device: torch.device) -> None:
        """Starts from what is allocated now; the device has its index."""
        super().__init__()
        self.device = device
        self.balance_bytes = self._rest = int(torch.cuda.memory_stats(device).get("requested_bytes.all.current", 0))

    def released_elsewhere(self, nbytes: int) -> None:
        """Nothing is missing: a card's memory history has what all threads do."""

    def start(self) -> None:
        """Starts listening."""
        allocators.start_cuda_history(self.device, CUDA_EVENTS)

    def stop(self) -> None:
        """Adds up what is there and stops."""
        self.take(event_sizes(allocators.cuda_history(self.device)))
        allocators.stop_cuda_history(self.device)


def event_sizes(entries: Sequence[dict[str, Any]]) -> list[int]:
    """Returns the bytes of each event of one device's CUDA memory history (`device_traces`).

    Positive for an allocation, negative for a release that has taken effect; segments are left out.
    """
    signs = {"alloc": 1, "free_completed": -1}
    return [signs[entry["action"]] * entry["size"] for entry in entries if entry["action"] in signs]
