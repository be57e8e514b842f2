"""The most memory of each training step, in tensors, cheaply enough for a whole run.

On a card torch counts it. On the CPU the allocator's events do, of the first steps and the first evaluation, and of all
others as long as adding them up takes next to no time. Beside that all that the process has allocated is read, tensors or
not, to see whether it grows.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable

import torch

from snugfit.device_kinds import CPU, forget_peaks, memory_in_use, memory_peaks
from snugfit.measure.allocator_events import AllocatorEvents
from snugfit.process_memory import heap_in_use_bytes

WINDOW = 12
"""First steps whose events are recorded on the CPU; enough to see growth in them."""
_SHARE = 0.002
"""Part of the time that adding events up may take after those, and that reading the heap may."""
_SURELY_READ = 32
"""Readings of the heap before that is asked."""


class StepPeaks:
    """Bytes of tensors on a device, step by step."""

    def __init__(self, device: torch.device, held: Iterable[torch.Tensor]) -> None:
        """Begins to measure.

        `held`: tensors that are there already and belong to the training; on a card all that is there counts.
        """
        self.device = device
        self.steps = 0
        """Steps that have ended."""
        self.peaks: dict[int, int] = {}
        """Step, from 1 -> most bytes alive in it, where that was measured."""
        self.alive: list[int] = []
        """Bytes alive at the end of each measured step."""
        self.heap: list[int] = []
        """All bytes that this process has allocated at the end of every `heap_stride` steps; on the CPU, where known."""
        self.heap_stride = 1
        self._heap_seconds = 0.0
        self.evaluation_bytes = 0
        """Most bytes alive in an evaluation that was measured."""
        self.reserved_bytes = 0
        """Most bytes that a card's allocator had reserved."""
        self._events = AllocatorEvents() if device.type == CPU else None
        self._evaluated = self._in_evaluation = False
        self._begun, self._spent_seconds = time.monotonic(), 0.0
        if self._events is not None:
            gc.collect()  # what only the collector frees would be taken off later
            storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in held}
            self._events.balance_bytes = sum(storages.values())
            self._events.start()
        else:
            forget_peaks(device)

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive in any step or evaluation."""
        return max([*self.peaks.values(), self.evaluation_bytes], default=0)

    def step_ended(self) -> None:
        """Takes down the step that has ended."""
        self._leave_evaluation()
        self.steps += 1
        if self._events is None:
            self.peaks[self.steps] = self._peak_on_card()
            self.alive.append((memory_in_use(self.device) or (0, 0))[0])
            return
        if self.steps % self.heap_stride == 0:
            self._read_heap()
        if not self._events.recording:
            return
        self._cut()
        self.peaks[self.steps] = self._events.recent_peak_bytes
        self.alive.append(self._events.balance_bytes)
        self._events.forget()

    def evaluation_begins(self) -> None:
        """Notes that an evaluation begins; the first one is recorded on the CPU."""
        if self._in_evaluation:
            return
        self._in_evaluation = True
        if self._events is not None and not self._evaluated and not self._events.recording:
            self._events.start()
        self._evaluated = True

    def evaluation_ended(self) -> None:
        """Notes that an evaluation ended."""
        self._leave_evaluation()

    def stop(self) -> None:
        """Ends measuring."""
        self._leave_evaluation()
        if self._events is not None:
            self._events.stop()

    def _leave_evaluation(self) -> None:
        if not self._in_evaluation:
            return
        self._in_evaluation = False
        if self._events is None:
            self.evaluation_bytes = max(self.evaluation_bytes, self._peak_on_card())
        elif self._events.recording:
            self._cut()
            self.evaluation_bytes = max(self.evaluation_bytes, self._events.recent_peak_bytes)
            self._events.forget()

    def _cut(self) -> None:
        assert self._events is not None
        begun = time.monotonic()
        self._events.stop()
        now = time.monotonic()
        self._spent_seconds += now - begun
        if self.steps < WINDOW or self._spent_seconds < _SHARE * (now - self._begun):
            self._events.start()

    def _peak_on_card(self) -> int:
        allocated, reserved = memory_peaks(self.device) or (0, 0)
        self.reserved_bytes = max(self.reserved_bytes, reserved)
        forget_peaks(self.device)
        return allocated

    def _read_heap(self) -> None:
        """Reads the heap; half as often from now on where that takes long beside the steps."""
        begun = time.monotonic()
        found = heap_in_use_bytes()
        now = time.monotonic()
        if found is None:
            return
        self.heap.append(found)
        self._heap_seconds += now - begun
        if (
            len(self.heap) >= _SURELY_READ
            and len(self.heap) % 8 == 0
            and self._heap_seconds > _SHARE * (now - self._begun)
        ):
            self.heap_stride *= 2
            self.heap = self.heap[1::2]
