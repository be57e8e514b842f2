"""The meter of one training run: what it used, whatever the device.

On the CPU it counts all tensors that the training owns at its peak, weights and state included, from before the model is
built, and beside it the process's peak above its baseline; on CUDA the allocator's peaks and what the driver says.
"""

from __future__ import annotations

import contextlib

import torch

from snugfit.errors import InputError
from snugfit.measure.cpu import CpuMeter
from snugfit.measure.cuda import CudaMeter


class Meter:
    """Measures one run: `start` before the model is built, the hooks as it goes, `result` at the end."""

    def __init__(self, device: torch.device | str, *, window_steps: int = 3) -> None:
        """Prepares, and measures nothing yet.

        Args:
            device: Where the run trains: cpu or a CUDA device.
            window_steps: First steps that are looked at closely, at least 1; later ones repeat them.

        Raises:
            InputError: The device is neither, or there is no step to look at.
        """
        device = torch.device(device)
        if window_steps < 1:
            raise InputError(f"window_steps is {window_steps}; it must be at least 1.")
        if device.type not in ("cpu", "cuda"):
            raise InputError(f"device {device.type!r} cannot be measured. Use cpu or cuda.")
        self._meter: CpuMeter | CudaMeter = (
            CpuMeter(window_steps=window_steps)
            if device.type == "cpu"
            else CudaMeter(device, window_steps=window_steps)
        )

    def start(self) -> None:
        """Takes the baseline. Call it once, before the model is built."""
        self._meter.start()

    def after_step(self, steps_done: int) -> None:
        """Notes that a training step ended.

        Args:
            steps_done: Updates done so far in this process, 1 after the first.
        """
        self._meter.after_step(steps_done)

    def before_evaluation(self) -> None:
        """Notes that an evaluation begins."""
        self._meter.before_evaluation()

    def after_evaluation(self) -> None:
        """Notes that an evaluation ended."""
        self._meter.after_evaluation()

    def recent_peak_bytes(self) -> int | None:
        """Returns the most tensor bytes so far, or since the last `changing`; None on CUDA, whose limit is real."""
        return self._meter.recent_peak_bytes() if isinstance(self._meter, CpuMeter) else None

    def changing(self) -> contextlib.AbstractContextManager[None]:
        """Surrounds a change of how the run trains: behind it, what it uses is looked at closely again."""
        return self._meter.changing() if isinstance(self._meter, CpuMeter) else contextlib.nullcontext()

    def current_bytes(self) -> int:
        """Returns what is in use now: tensors on CUDA, resident memory above the baseline on the CPU."""
        return self._meter.current_bytes()

    def result(self, host_tensor_bytes: int) -> dict[str, int | None]:
        """Ends the measurement.

        Args:
            host_tensor_bytes: Most bytes that the recipe kept in its host pool (`trainer.peak_host_bytes`).

        Returns:
            On the CPU `peak_tensor_bytes`, `host_tensor_bytes` and `rss_bytes` (the host pool is part of it); on CUDA
            `peak_allocated_bytes`, `peak_reserved_bytes` and `nvml_bytes`. None where the system does not tell.
        """
        return self._meter.result(host_tensor_bytes)
