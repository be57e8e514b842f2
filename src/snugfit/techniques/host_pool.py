"""Host memory for what a recipe moves off the device, counted apart from what the training itself owns.

On CUDA the pool hands out page-locked memory, which copies can overlap with compute. On a CPU run there is no second
memory: the pool then maps anonymous pages outside torch's allocator, so that the bytes a recipe would move to the host of
a GPU can be told from those that stay, in the measurements as well as in `nbytes`.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Sequence

import torch

from snugfit.device_kinds import CPU, kind_of


class HostPool:
    """Hands out host tensors and counts their bytes until they die."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.nbytes = 0
        self.peak_bytes = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype, *, strides: Sequence[int] | None = None) -> torch.Tensor:
        """Returns an uninitialised host tensor, counted until nothing refers to it; strides None: contiguous.

        `strides`: its strides, dense in some order of dimensions; None: contiguous.
        """
        count = math.prod(shape)
        size_bytes = count * dtype.itemsize
        if strides is None:
            strides = torch.empty(tuple(shape), device="meta").stride()
        if self.device.type == CPU and size_bytes:
            owner: object = mmap.mmap(-1, size_bytes)
            tensor = torch.frombuffer(owner, dtype=dtype, count=count).as_strided(tuple(shape), tuple(strides))
        else:
            locked = kind_of(self.device).page_locked
            tensor = torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device=CPU, pin_memory=locked)
            owner = tensor.untyped_storage()  # it outlives the tensor where views or parameters share it
        self.nbytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.nbytes)
        weakref.finalize(owner, self._released, size_bytes).atexit = False
        return tensor

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a contiguous copy of a tensor in the pool; waits until it is there."""
        host = self.empty(tensor.shape, tensor.dtype)
        host.copy_(tensor.detach())
        return host

    def _released(self, size_bytes: int) -> None:
        self.nbytes -= size_bytes
