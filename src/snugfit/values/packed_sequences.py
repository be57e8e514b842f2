"""Packed sequences that become padded ones: torch's kernel reads how long they are, and writes that down, by address.

A simulation knows the lengths (they stay on the host as they are, `workers/skeleton.py`), so the same happens by operators:
a padded tensor is filled, and each run of steps with as many sequences is copied into its corner.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import rnn

from snugfit.attributes import Change
from snugfit.private_torch import without_modes
from snugfit.private_torch.fake_tensors import FakeTensor


def packed_sequences() -> list[Change]:
    """Returns the replacement for torch's kernel that pads packed sequences."""
    kernels: Any = vars(rnn)["_VF"]
    original = kernels._pad_packed_sequence

    def pad(data: Tensor, batch_sizes: Tensor, batch_first: bool, padding: float, length: int) -> tuple[Tensor, Tensor]:
        if not isinstance(data, FakeTensor) or isinstance(batch_sizes, FakeTensor):
            return original(data, batch_sizes, batch_first, padding, length)  # type: ignore[no-any-return]
        with without_modes():
            counts = batch_sizes.tolist()
        padded = data.new_full((length, counts[0], *data.shape[1:]), padding)
        begin = offset = 0
        for end, (count, following) in enumerate(zip(counts, [*counts[1:], 0], strict=True), start=1):
            if count != following:
                taken = count * (end - begin)
                run = data[offset : offset + taken].view(end - begin, count, *data.shape[1:])
                padded[begin:end, :count].copy_(run)
                begin, offset = end, offset + taken
        lengths = [sum(count > row for count in counts) for row in range(counts[0])]
        return padded.transpose(0, 1) if batch_first else padded, torch.tensor(lengths)

    return [(kernels, "_pad_packed_sequence", pad)]
