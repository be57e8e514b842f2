"""Limits of samples: cut to the longest that is allowed, ids within the vocabulary, nothing that teaches nothing."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from snugfit.errors import InputError, SnugfitWarning
from snugfit.workloads.text import causal
from snugfit.workloads.text.ragged import Indices, Ragged


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
        self._limit = limit
        self._samples = self._long = self._longest = self._unlearned = 0

    def texts(self, ids: Ragged, tokenizer: Any, texts: Sequence[str]) -> Ragged:
        """Cuts texts as the tokenizer cuts, which keeps its special tokens."""
        long = self._note(ids)
        if not len(long):
            return ids
        shorter = {
            int(index): tokenizer(
                texts[index], truncation=True, max_length=self._limit, return_attention_mask=False, verbose=False
            )["input_ids"]
            for index in long
        }
        return Ragged.of(shorter.get(index, ids[index]) for index in range(len(ids)))

    def ids(self, ids: Ragged) -> Ragged:
        """Cuts off what is too much at the end."""
        self._note(ids)
        return Ragged.of(ids[index][: self._limit] for index in range(len(ids)))

    def learned(self, ids: Ragged, fronts: Indices, fill: int) -> causal.Sequences:
        """Leaves out sequences of which nothing is learned: a batch of these would have no loss."""
        kept = np.flatnonzero(causal.counted(ids, fronts))
        self._unlearned += len(ids) - len(kept)
        return causal.Sequences(ids.picked(kept), fronts[kept], pad_id=fill, limit=self._limit)

    def _note(self, ids: Ragged) -> Indices:
        lengths = ids.lengths
        long = np.flatnonzero(lengths > self._limit)
        self._samples += len(ids)
        self._long += len(long)
        self._longest = max(self._longest, int(lengths.max(initial=0)))
        return long

    def warn(self, spec: str) -> None:
        """Says what was cut and left out, where something was."""
        if self._long:
            warnings.warn(
                f"{self._long} of {self._samples} samples of {spec} are longer than {self._limit} tokens and were cut; the "
                f"longest has {self._longest}. --seq-len sets the limit.",
                SnugfitWarning,
                stacklevel=2,
            )
        if self._unlearned:
            warnings.warn(
                f"{self._unlearned} samples of {spec} were left out: their prompt fills {self._limit} tokens, or they have "
                "one token only, so nothing of them would be learned.",
                SnugfitWarning,
                stacklevel=2,
            )
