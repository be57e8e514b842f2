"""Packed sequences: torch's kernels read how long they are, and write that down, by address; here operators do the same.

Where a simulation knows the lengths (numbers in the code; a `PackedSequence` that was given, whose lengths stay on the host
as they are, `workers/skeleton.py`; a script's own data) it takes them. Lengths of which it has no values are taken to be
those of the padded tensor: what trains by that trains by all others. Padded tensors and their gradients are filled with
zeros, and each run of steps with as many sequences is copied from or into its corner.

Source: `aten/src/ATen/native/PackedSequence.cpp` of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import rnn

from snugfit.attributes import Change
from snugfit.private_torch import without_modes
from snugfit.private_torch.fake_tensors import FakeTensor
from snugfit.values.known_values import known_value

PACKED = "sequences that are packed were taken to be as long as the padded ones, the most they may be"
OF_DATA = "sequences were packed by the lengths that they have: a packed batch takes what its lengths add up to"


def packed_sequences(answered: Callable[[str], None]) -> list[Change]:
    """Returns the replacements for what packs sequences and pads packed ones."""
    kernels: Any = vars(rnn)["_VF"]
    packs, pads = kernels._pack_padded_sequence, kernels._pad_packed_sequence

    def pack(padded: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        if not isinstance(padded, FakeTensor):
            return packs(padded, lengths, batch_first)  # type: ignore[no-any-return]
        longest = padded.shape[1 if batch_first else 0]
        known = known_value(lengths) if isinstance(lengths, FakeTensor) else lengths
        if known is None or known is lengths:
            answered(PACKED if known is None else OF_DATA)
        with without_modes():
            each = [longest] * lengths.shape[0] if known is None else known.tolist()
            counts = [sum(one > at for one in each) for at in range(max(each))]
            sizes = torch.tensor(counts)
        return _Pack.apply(padded, counts, batch_first), sizes

    def pad(data: Tensor, batch_sizes: Tensor, batch_first: bool, padding: float, length: int) -> tuple[Tensor, Tensor]:
        if not isinstance(data, FakeTensor) or isinstance(batch_sizes, FakeTensor):
            return pads(data, batch_sizes, batch_first, padding, length)  # type: ignore[no-any-return]
        with without_modes():
            counts = batch_sizes.tolist()
        padded = _into_corners(data.new_full((length, counts[0], *data.shape[1:]), padding), data, counts)
        lengths = [sum(count > row for count in counts) for row in range(counts[0])]
        return padded.transpose(0, 1) if batch_first else padded, torch.tensor(lengths)

    def invert(permutation: Tensor | None) -> Tensor | None:
        if isinstance(permutation, FakeTensor):
            return inverts(permutation)
        with without_modes():  # of lengths that are known: its values are looked at
            return inverts(permutation)

    inverts = rnn.invert_permutation
    return [
        (kernels, "_pack_padded_sequence", pack),
        (kernels, "_pad_packed_sequence", pad),
        (rnn, "invert_permutation", invert),
    ]


class _Pack(torch.autograd.Function):
    """Packs a padded tensor."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, counts: list[int], batch_first: bool) -> Tensor:
        by_steps = padded.transpose(0, 1) if batch_first else padded
        ctx.counts, ctx.batch_first, ctx.shape = counts, batch_first, by_steps.shape
        rest = by_steps.shape[2:]
        steps = [by_steps[begin:end, : counts[begin]].contiguous().view(-1, *rest) for begin, end, _ in _runs(counts)]
        return torch.cat(steps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        padded = _into_corners(grad.new_zeros(ctx.shape), grad, ctx.counts)
        return padded.transpose(0, 1) if ctx.batch_first else padded, None, None


def _into_corners(padded: Tensor, packed: Tensor, counts: list[int]) -> Tensor:
    """Copies each run of what is packed into its corner of a padded tensor, and returns that."""
    for begin, end, offset in _runs(counts):
        count = counts[begin]
        run = packed[offset : offset + count * (end - begin)].view(end - begin, count, *packed.shape[1:])
        padded[begin:end, :count].copy_(run)
    return padded


def _runs(counts: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yields begin and end of each run of steps that as many sequences reach, and what was packed before it."""
    begin = offset = 0
    for end, (count, following) in enumerate(zip(counts, [*counts[1:], 0], strict=True), start=1):
        if count != following:
            yield begin, end, offset
            begin, offset = end, offset + count * (end - begin)
