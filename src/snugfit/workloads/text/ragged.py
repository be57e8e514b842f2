"""Sequences of different lengths in one array: numpy at rest, tensors only by the batch.

A token that is read and not learned, such as those of a prompt, is held as its complement: -1 for 0, -2 for 1 and so on.
So what is learned takes no memory of its own.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from snugfit.techniques.batches import IGNORED_LABEL

Ids = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]


def tokens_of(held: np.ndarray) -> np.ndarray:
    """Returns the token ids, whether they are learned or not."""
    return np.where(held < 0, ~held, held)


def labels_of(held: np.ndarray) -> np.ndarray:
    """Returns the token ids that are learned, and -100 for the others."""
    return np.where(held < 0, IGNORED_LABEL, held)


@dataclasses.dataclass(frozen=True, slots=True)
class Ragged:
    """Token ids of many sequences, end to end."""

    values: Ids
    """int32, all sequences one after the other."""

    offsets: Indices
    """int64, `[N + 1]`: sequence i runs from `offsets[i]` to `offsets[i + 1]`."""

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int] | Ids]) -> Ragged:
        """Copies sequences end to end."""
        return cls.joined((sequence,) for sequence in sequences)

    @classmethod
    def joined(cls, sequences: Iterable[Iterable[Sequence[int] | Ids]]) -> Ragged:
        """Copies sequences, of which each comes in parts, end to end."""
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
        """Returns a copy of some of the sequences, in the order of the indices."""
        return Ragged.of(self[int(index)] for index in indices)
