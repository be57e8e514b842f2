"""How many kernels an operator on lists of tensors launches: `MultiTensorApply.cuh` packs tensors and chunks into each."""

from __future__ import annotations

import math
from typing import NamedTuple

TENSORS_PER_LAUNCH = (110, 64, 48, 36, 30)
"""Tensors in one multi-tensor kernel, by number of lists. Source: MultiTensorApply.cuh, depth_to_max_tensors."""
CHUNK_ELEMENTS, CHUNKS_PER_LAUNCH = 65536, 320
"""Source: MultiTensorApply.cuh, kChunkSize and depth_to_max_blocks."""


class TensorLists(NamedTuple):
    """The lists of tensors that one operator works on."""

    tensors: int
    """Tensors in each list."""
    chunks: int
    """Chunks of the tensors of the first list."""
    lists: int
    """Number of lists."""

    @property
    def launches(self) -> int:
        """Kernels that are launched."""
        per_launch = TENSORS_PER_LAUNCH[min(self.lists, len(TENSORS_PER_LAUNCH)) - 1]
        return max(math.ceil(self.tensors / per_launch), math.ceil(self.chunks / CHUNKS_PER_LAUNCH))
