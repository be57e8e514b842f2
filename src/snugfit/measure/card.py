"""What a run on a card used: torch's own peaks, and what the driver counts for this process."""

from __future__ import annotations

import contextlib

import torch

from snugfit.device_kinds import begin_peaks, memory_peaks, wait_for
from snugfit.measure.fresh import take_tuning
from snugfit.measure.nvml import process_bytes
from snugfit.process_memory import keep_freed_memory


class CardMeter:
    """Meter of a run on a card; `snugfit.measure.meter` says what its hooks are."""

    def __init__(self, device: torch.device, *, window_steps: int) -> None:
        """Prepares, and measures nothing yet.

        Args:
            device: The card.
            window_steps: First steps after which the driver is asked, at least 1.
        """
        self._device = device
        self._window_steps = window_steps
        self._nvml_bytes: int | None = None
        if take_tuning():
            keep_freed_memory()  # nobody reads this process's own memory

    def start(self, model: torch.nn.Module | None = None) -> None:
        """Resets the peaks; what is on the device counts."""
        begin_peaks(self._device)

    def built(self) -> None:
        """Notes that the run is built."""

    def after_step(self, steps_done: int) -> None:
        """Notes that a step ended."""
        if steps_done <= self._window_steps:
            self._ask_driver()

    def before_evaluation(self) -> None:
        """Notes that an evaluation begins."""

    def after_evaluation(self) -> None:
        """Notes that an evaluation ended."""
        self._ask_driver()

    def recent_peak_bytes(self) -> None:
        """Returns None: the limit of a card is real, and nobody has to watch it."""

    def changing(self) -> contextlib.AbstractContextManager[None]:
        """Surrounds a change of how the run trains."""
        return contextlib.nullcontext()

    def result(self, host_tensor_bytes: int) -> dict[str, int | None]:
        """Ends the measurement.

        Args:
            host_tensor_bytes: Most bytes that the recipe kept in its host pool; not on this device, so not in the result.

        Returns:
            `peak_allocated_bytes`, `peak_reserved_bytes` (None where torch does not count them) and `nvml_bytes` (None
            where the driver does not tell).
        """
        wait_for(self._device)
        self._ask_driver()
        allocated, reserved = memory_peaks(self._device) or (None, None)
        return {"peak_allocated_bytes": allocated, "peak_reserved_bytes": reserved, "nvml_bytes": self._nvml_bytes}

    def _ask_driver(self) -> None:
        used_bytes = process_bytes(self._device)
        if used_bytes is not None:
            self._nvml_bytes = max(used_bytes, self._nvml_bytes or 0)
