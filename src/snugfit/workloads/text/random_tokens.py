"""`random`: sequences of random tokens, full to the last place, for measuring memory and speed; nothing can be learned.

Each is drawn from a generator of its own, by seed, part and index, so nothing is stored and any order gives the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

TRAIN_SEQUENCES = 1024
"""Training sequences where no number is given; validation and test have a quarter each."""


class RandomTokens:
    """Random token ids, drawn when they are asked for."""

    def __init__(
        self, count: int, *, seq_len: int, vocabulary: int, num_classes: int | None, seed: int, part: int
    ) -> None:
        """Draws nothing yet; `num_classes` None: the labels are the tokens themselves.

        `part`: number of the part, so that no two parts share a sequence.
        """
        self._count, self._seq_len, self._vocabulary = count, seq_len, vocabulary
        self._classes, self._key = num_classes, (seed, part)

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """Returns B sequences as a batch.

        `input_ids`, int64 `[B, T]`, and `labels`, int64 `[B]` or `[B, T]`.
        """
        ids = torch.empty(len(indices), self._seq_len, dtype=torch.long)
        labels = torch.empty(len(indices), dtype=torch.long)
        for row, index in enumerate(indices):
            if not 0 <= index < self._count:
                raise IndexError(index)
            random = np.random.Generator(np.random.PCG64((*self._key, int(index))))
            ids[row] = torch.from_numpy(random.integers(self._vocabulary, size=self._seq_len))
            labels[row] = int(random.integers(self._classes or 1))
        return {"input_ids": ids, "labels": ids.clone() if self._classes is None else labels}
