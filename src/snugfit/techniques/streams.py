"""A second stream for copies, on any device: a real one on CUDA, a silent stand-in where work is done in order.

Copies are ordered by events alone. `record_stream` would free memory by GPU timing, which nobody can predict.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from snugfit.device_kinds import module_of


class CopyStream:
    """Orders copies against the compute stream of a device; does nothing where the device works in order."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = module_of(device)
        self._stream = self._module.Stream(device) if self._module else None

    def __reduce__(self) -> tuple[type[CopyStream], tuple[torch.device]]:
        """A copy of a prepared model gets a stream of its own; streams themselves cannot be copied."""
        return CopyStream, (self._device,)

    def compute_mark(self) -> Any:
        """Returns an event at the end of the compute queued so far."""
        if self._module is None:
            return None
        event = self._module.Event()
        event.record(self._module.current_stream())
        return event

    def copying(self, after: Any) -> AbstractContextManager[Any]:
        """Context in which copies are queued on the copy stream; they wait for the event `after`."""
        if self._module is None:
            return nullcontext()
        assert self._stream is not None
        self._stream.wait_event(after)
        context: AbstractContextManager[Any] = self._module.stream(self._stream)
        return context

    def copy_mark(self) -> Any:
        """Returns an event at the end of the copies queued so far."""
        if self._module is None:
            return None
        event = self._module.Event()
        event.record(self._stream)
        return event

    def compute_waits_for(self, mark: Any) -> None:
        """Makes compute queued from now on wait for copies, by an event of `copy_mark`; the host goes on."""
        if mark is not None:
            self._module.current_stream().wait_event(mark)

    def host_waits_for(self, mark: Any) -> None:
        """Makes the host wait for copies, by an event of `copy_mark`."""
        if mark is not None:
            mark.synchronize()
