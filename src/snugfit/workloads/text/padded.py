"""Batches that are padded to their longest sequence, for both tasks: padding is neither read nor learned.

A language model shifts by itself, as those of transformers do: the label of a token is the token itself, and what comes
before it predicts it. -100 marks labels that do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from snugfit.techniques.batches import IGNORED_LABEL
from snugfit.workloads.text.ragged import Indices, Ragged, labels_of, tokens_of

PAD_MULTIPLE = 8
"""Batches are padded to a multiple of this, which the tensor cores of all cards with 16-bit types like (NVIDIA, "Tensor
Core Requirements")."""


class PaddedTexts:
    """Texts of different lengths, with one label each, or learned token by token."""

    def __init__(self, ids: Ragged, *, pad_id: int, limit: int, labels: Indices | None = None) -> None:
        """Takes the ids of N texts, each of at most `limit` tokens; `pad_id` fills up shorter ones.

        `labels`: the label of each, int64 `[N]`; None: the tokens themselves.
        """
        self.ids, self.labels = ids, labels
        self._pad_id, self._limit = pad_id, limit

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """Returns B texts as a batch.

        `input_ids` and `attention_mask` (1 for tokens, 0 for padding), int64 `[B, T]`; `labels`, int64 `[B]` or
        `[B, T]`.
        """
        rows = [self.ids[int(index)] for index in indices]
        longest = max(map(len, rows))
        length = min(-(-longest // PAD_MULTIPLE) * PAD_MULTIPLE, max(self._limit, longest))
        return {
            "input_ids": _pad(map(tokens_of, rows), self._pad_id, len(rows), length),
            "attention_mask": _pad((np.ones_like(row) for row in rows), 0, len(rows), length),
            "labels": _pad(map(labels_of, rows), IGNORED_LABEL, len(rows), length)
            if self.labels is None
            else torch.from_numpy(self.labels[np.asarray(indices, dtype=np.int64)]),
        }


def _pad(rows: Iterable[np.ndarray], fill: int, count: int, length: int) -> torch.Tensor:
    batch = torch.full((count, length), fill, dtype=torch.long)
    view = batch.numpy()
    for row, ids in enumerate(rows):
        view[row, : len(ids)] = ids
    return batch
