"""Limits of samples: cut to the longest that is allowed, ids within the vocabulary, nothing that teaches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from snugfit.errors import InputError, warn
from snugfit.workloads.text.ragged import Ids, Ragged
from snugfit.workloads.text.stored import Column
from snugfit.workloads.text.tokenizer import encode


def check_ids(spec: str, ids: Ragged, vocabulary: int | None) -> None:
    """Raises for an id beyond the vocabulary: a tokenizer may give ids that its size does not include."""
    highest = max(int(ids.values.max(initial=0)), ~int(ids.values.min(initial=0)))
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
        self.unlearned = 0
        self._samples = self._long = self._longest = 0

    def texts(self, tokenizer: Any, texts: Column) -> Ragged:
        """Encodes texts and cuts them as the tokenizer does, which keeps its special tokens."""
        return Ragged.of(encode(tokenizer, texts, limit=self.limit, note=self._note))

    def learned(self, samples: Iterable[Ids]) -> Iterator[Ids]:
        """Cuts samples at the end, and drops those with nothing to learn: a batch of them would have no loss."""
        for ids in samples:
            self._note(len(ids))
            kept = ids[: self.limit]
            if (kept[1:] >= 0).any():  # nothing predicts a first token
                yield kept
            else:
                self.unlearned += 1

    def _note(self, length: int) -> None:
        self._samples += 1
        self._long += length > self.limit
        self._longest = max(self._longest, length)

    def warn(self, spec: str) -> None:
        """Warns once of what was cut and dropped."""
        if self._long:
            warn(
                f"{self._long} of {self._samples} samples of {spec} are longer than {self.limit} tokens and were cut; the "
                f"longest has {self._longest}. --seq-len sets the limit."
            )
        if self.unlearned:
            warn(
                f"{self.unlearned} samples of {spec} were left out: their prompt fills {self.limit} tokens, or they have "
                "one token only, so nothing of them would be learned."
            )
