"""Which kind of device a simulated run takes place on. Imports no torch, so that a request can say it without."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from snugfit.device_kinds import CPU, CUDA, SIMULATED, Simulated
from snugfit.recording.generations import GENERATIONS, Capability

if TYPE_CHECKING:
    import torch

DEVICE_TYPE = SIMULATED


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Personality:
    """The kind of device that a run is simulated on."""

    kind: Simulated = CUDA
    """cuda, or cpu for a run on the host."""

    capability: Capability = GENERATIONS[0]
    """Compute capability of the card: decides attention kernels and the cuBLAS workspace. Ignored on cpu."""

    threads: int | None = None
    """Threads that torch computes with in a run on cpu; None: as many as it takes by itself on this machine."""

    @property
    def is_card(self) -> bool:
        """Whether it stands for a card."""
        return self.kind != CPU

    @property
    def device(self) -> torch.device:
        """The device that tensors of the run are on."""
        import torch

        return torch.device(DEVICE_TYPE, 0) if self.is_card else torch.device(CPU)
