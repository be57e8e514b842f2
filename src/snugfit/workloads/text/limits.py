"""Limits of samples: cut to the longest that is allowed, ids within the vocabulary, nothing that teaches nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from snugfit.errors import InputError, SnugfitWarning
from snugfit.workloads.text import causal
from snugfit.workloads.text.causal import Marks
from snugfit.workloads.text.ragged import Ids, Indices, Ragged
from snugfit.workloads.text.tokenizer import encode


def check_ids(spec: str, ids: Ragged, vocabulary: int | None) -> None:
    """A tokenizer may give ids that its size does not tell of."""
    highest = int(ids.values.max(initial=0))
    if vocabulary is not None and highest >= vocabulary:
        raise InputError(
            f"data {spec!r} has the token id {highest}, and the model's vocabulary ends at {vocabulary - 1}. Build the "
            f"model with a larger one, for example --model-arg vocab_size={highest + 1}, or give the tokenizer "
            "that belongs to it."
        )


class Cut:
    """Cuts samples to the longest that is allowed, and counts them for one warning."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._samples = self._long = self._longest = self._unlearned = 0

    def texts(self, tokenizer: Any, texts: Sequence[str]) -> Ragged:
        """Encodes texts and cuts them as the tokenizer cuts, which keeps its special tokens."""
        return Ragged.of(encode(tokenizer, texts, limit=self.limit, note=self._note))

    def each(self, ids: Iterable[Sequence[int] | Ids]) -> Iterator[Sequence[int] | Ids]:
        """Cuts off what is too much at the end."""
        for one in ids:
            self._note(len(one))
            yield one[: self.limit]

    def learned(self, ids: Ragged, fronts: Indices, fill: int, marks: Marks | None = None) -> causal.Sequences:
        """Leaves out sequences of which nothing is learned: a batch of these would have no loss."""
        kept = np.flatnonzero(causal.counted(ids, fronts, marks))
        self._unlearned += len(ids) - len(kept)
        if len(kept) < len(ids):
            marks = None if marks is None else Ragged(marks.astype(np.int32), ids.offsets).picked(kept).values != 0
            ids, fronts = ids.picked(kept), fronts[kept]
        return causal.Sequences(ids, fronts, pad_id=fill, limit=self.limit, marks=marks)

    def _note(self, length: int) -> None:
        self._samples += 1
        self._long += length > self.limit
        self._longest = max(self._longest, length)

    def warn(self, spec: str) -> None:
        """Says what was cut and left out, where something was."""
        if self._long:
            warnings.warn(
                f"{self._long} of {self._samples} samples of {spec} are longer than {self.limit} tokens and were cut; the "
                f"longest has {self._longest}. --seq-len sets the limit.",
                SnugfitWarning,
                stacklevel=2,
            )
        if self._unlearned:
            warnings.warn(
                f"{self._unlearned} samples of {spec} were left out: their prompt fills {self.limit} tokens, or they have "
                "one token only, so nothing of them would be learned.",
                SnugfitWarning,
                stacklevel=2,
            )
