"""Whether somebody has written into a tensor, where torch's version counter does not tell (`weight.data.clamp_()`)."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

_WIDE = torch.int64
_BY_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def sum_of_bits(tensor: Tensor) -> Tensor:
    """Returns the sum of a tensor's memory read as int64, 0-dim on its device, without a temporary of its size.

    Two values that are exchanged leave the sum as it is, so such a write is not seen.
    """
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not torch.ops.aten.is_non_overlapping_and_dense(tensor):
        tensor = tensor.contiguous()
    flat = tensor.as_strided((tensor.numel(),), (1,))
    size = flat.element_size()
    if size == _WIDE.itemsize:
        return flat.view(_WIDE).sum()
    # eight bytes at a time, from the first that lies where a wide number may
    together = _WIDE.itemsize // size
    begin = min(-flat.storage_offset() % together, flat.numel())
    end = begin + (flat.numel() - begin) // together * together
    parts = ((flat[begin:end], _WIDE), (flat[:begin], _BY_SIZE[size]), (flat[end:], _BY_SIZE[size]))
    sums = [part.view(dtype).sum() for part, dtype in parts if part.numel()]
    return functools.reduce(torch.add, sums) if sums else torch.zeros((), dtype=_WIDE, device=flat.device)
