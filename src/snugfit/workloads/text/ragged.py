"""Sequences of different lengths in one array, and batches of them: numpy at rest, tensors only by the batch."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

PAD_MULTIPLE = 8
"""Batches are padded to a multiple of this, which the tensor cores of all cards with 16-bit types like (NVIDIA, "Tensor
Core Requirements")."""

Ids = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class Ragged:
    """Token ids of many sequences, end to end."""

    values: Ids
    """int32, all sequences one after the other."""

    offsets: Indices
    """int64, `[N + 1]`: sequence i runs from `offsets[i]` to `offsets[i + 1]`."""

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int] | Ids]) -> Ragged:
        """Puts sequences end to end.

        Args:
            sequences: Token ids of each.

        Returns:
            The sequences, copied.
        """
        return cls.joined((sequence,) for sequence in sequences)

    @classmethod
    def joined(cls, sequences: Iterable[Iterable[Sequence[int] | Ids]]) -> Ragged:
        """Puts sequences end to end that come in parts.

        Args:
            sequences: The parts of each.

        Returns:
            The sequences, copied.
        """
        values, offsets = array("i"), array("q", [0])
        for sequence in sequences:  # one array that grows: the sequences may be made as they are asked for
            for part in sequence:
                values.frombytes(np.ascontiguousarray(part, dtype=np.int32).tobytes())
            offsets.append(len(values))
        return cls(np.frombuffer(values, dtype=np.int32), np.frombuffer(offsets, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Ids:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> Indices:
        """Tokens of each sequence, int64 `[N]`."""
        return np.diff(self.offsets)

    def picked(self, indices: Iterable[int]) -> Ragged:
        """Returns some of the sequences.

        Args:
            indices: Which, in the order wanted.

        Returns:
            A copy of those.
        """
        return Ragged.of(self[int(index)] for index in indices)


def padded_length(longest: int, limit: int) -> int:
    """Returns the length of a batch.

    Args:
        longest: Tokens of its longest sequence.
        limit: Most tokens of a sequence.

    Returns:
        The next multiple of `PAD_MULTIPLE`, or the limit where that is less.
    """
    return min(-(-longest // PAD_MULTIPLE) * PAD_MULTIPLE, max(limit, longest))


def pad(rows: Sequence[Ids], *, fill: int, length: int) -> torch.Tensor:
    """Returns sequences as one tensor, filled up on the right.

    Args:
        rows: B sequences of at most `length` ids.
        fill: What stands behind a shorter one.
        length: Columns of the result, T.

    Returns:
        int64, `[B, T]`.
    """
    batch = torch.full((len(rows), length), fill, dtype=torch.long)
    view = batch.numpy()
    for row, ids in enumerate(rows):
        view[row, : len(ids)] = ids
    return batch


def pad_mask(rows: Sequence[Ids], *, length: int) -> torch.Tensor:
    """Returns what is a token and what is padding.

    Args:
        rows: B sequences.
        length: Columns of the result, T.

    Returns:
        int64, `[B, T]`: 1 for tokens, 0 for padding.
    """
    lengths = torch.tensor([len(ids) for ids in rows])
    return (torch.arange(length)[None, :] < lengths[:, None]).long()
