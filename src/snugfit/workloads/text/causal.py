"""Token sequences for `causal-lm`: a batch is padded to its longest, and neither padding nor a prompt is learned.

The model shifts by itself, as those of transformers do: the label of a token is the token itself, and what comes before
it predicts it. -100 marks labels that do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from snugfit.techniques.microbatch.apply import IGNORED_LABEL
from snugfit.workloads.text.documents import Text, text_parts
from snugfit.workloads.text.ragged import Ids, Indices, Ragged, pad, pad_mask, padded_length
from snugfit.workloads.text.stored import shown
from snugfit.workloads.text.tokenizer import encode, encode_bytes, end_id, reads_bytes_of

Marks = npt.NDArray[np.bool_]
"""Whether each token of sequences end to end is learned."""


class Sequences:
    """Token sequences, each with a part at its front that is not learned (mostly of length 0)."""

    def __init__(self, ids: Ragged, prompts: Indices, *, pad_id: int, limit: int, marks: Marks | None = None) -> None:
        """Holds the token ids.

        Args:
            ids: Token ids of N sequences, each of at most `limit`.
            prompts: Tokens at the front that are not learned, int64 `[N]`.
            pad_id: What shorter sequences are filled up with.
            limit: Most tokens of a sequence.
            marks: Whether each token of `ids.values` is learned, where that is not all behind the front.
        """
        self.ids, self.prompts, self.marks = ids, prompts, marks
        self._pad_id, self._limit = pad_id, limit

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """Returns some sequences as a batch.

        Args:
            indices: Which, B of them.

        Returns:
            `input_ids`, `attention_mask` (1 for tokens, 0 for padding) and `labels` (-100 for padding and prompts), all
            int64 `[B, T]`.
        """
        rows = [self.ids[int(index)] for index in indices]
        length = padded_length(max(map(len, rows)), self._limit)
        labels = pad(rows, fill=IGNORED_LABEL, length=length)
        for row, index in enumerate(indices):
            labels[row, : int(self.prompts[int(index)])] = IGNORED_LABEL
            if self.marks is not None:
                start, end = self.ids.offsets[int(index)], self.ids.offsets[int(index) + 1]
                labels[row, : end - start][torch.from_numpy(~self.marks[start:end])] = IGNORED_LABEL
        return {
            "input_ids": pad(rows, fill=self._pad_id, length=length),
            "attention_mask": pad_mask(rows, length=length),
            "labels": labels,
        }


def encode_texts(tokenizer: Any, texts: Sequence[str]) -> Iterator[Ids]:
    """Yields whole texts as token ids, each with the tokenizer's end behind it.

    Args:
        tokenizer: A tokenizer of transformers.
        texts: The texts.

    Yields:
        Ids of each, not cut.
    """
    return (_ended(ids, tokenizer) for ids in encode(tokenizer, texts))


def encode_pairs(tokenizer: Any, prompts: Sequence[str], completions: Sequence[str]) -> Iterator[tuple[Ids, int]]:
    """Yields prompts and what follows them as token ids.

    The two are encoded apart, so that no token is half prompt; a line break parts them where neither side has a space.

    Args:
        tokenizer: A tokenizer of transformers.
        prompts: The prompts.
        completions: What follows each.

    Yields:
        Ids of each pair, not cut, and how many of them are the prompt's.
    """
    end = end_id(tokenizer)
    fronts = encode(tokenizer, _Parted(prompts, completions))
    backs = encode(tokenizer, completions, special=False, show=False)
    for ids, back in zip(fronts, backs, strict=True):
        front = _without_end(np.asarray(ids, dtype=np.int32), end)
        yield np.concatenate([front, _ended(back, tokenizer)]), len(front)


class _Parted(Sequence[str]):
    """Prompts with a line break behind those that need one, made as they are walked through."""

    def __init__(self, prompts: Sequence[str], completions: Sequence[str]) -> None:
        self._prompts, self._completions = prompts, completions

    def __len__(self) -> int:
        return len(self._prompts)

    def __iter__(self) -> Iterator[str]:
        for prompt, completion in zip(self._prompts, self._completions, strict=True):
            parted = not prompt or prompt[-1].isspace() or completion[0].isspace()
            yield prompt if parted else prompt + "\n"

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def _ended(given: Sequence[int] | Ids, tokenizer: Any) -> Ids:
    ids = np.asarray(given, dtype=np.int32)
    end = end_id(tokenizer)
    if end is None or (len(ids) and ids[-1] == end):
        return ids
    return np.append(ids, np.int32(end))


def _without_end(ids: Ids, end: int | None) -> Ids:
    return ids[:-1] if len(ids) and ids[-1] == end else ids


def encode_documents(tokenizer: Any, documents: Sequence[Text]) -> Iterator[Iterator[Ids]]:
    """Yields documents as token ids, each in parts, with the tokenizer's end behind it.

    Args:
        tokenizer: A tokenizer of transformers.
        documents: The texts.

    Yields:
        The parts of each; one that reads bytes never sees more of a document, others see it whole.
    """
    for text in shown(documents, f"turning {len(documents)} texts into tokens", len(documents)):
        if reads_bytes_of(tokenizer, text_parts(text)):
            yield encode_bytes(tokenizer, text_parts(text))
        else:
            whole = encode(tokenizer, ["".join(text_parts(text))], show=False)
            yield (_ended(ids, tokenizer) for ids in whole)


def blocks(documents: Iterable[Iterable[Ids]], length: int) -> Ragged:
    """Cuts long sequences into pieces; a piece of one token, which has nothing to predict it, is left out.

    Args:
        documents: Token ids of documents, each in parts.
        length: Tokens of a piece, at most.

    Returns:
        The pieces, in their order.
    """

    def pieces() -> Iterator[Ids]:
        for parts in documents:
            rest = np.zeros(0, dtype=np.int32)
            for part in parts:
                rest = np.concatenate([rest, part])
                whole = len(rest) // length * length
                yield from rest[:whole].reshape(-1, length)
                rest = rest[whole:]
            yield rest

    return Ragged.of(piece for piece in pieces() if len(piece) > 1)


def counted(ids: Ragged, prompts: Indices, marks: Marks | None = None) -> Indices:
    """Returns how many labels of each sequence count: all but those of the prompt and of the first token.

    Args:
        ids: Token ids.
        prompts: Tokens at the front that are not learned, int64 `[N]`.
        marks: Whether each token is learned, where that is not all behind the front.

    Returns:
        int64, `[N]`.
    """
    if marks is not None:
        learned = marks.copy()
        learned[ids.offsets[:-1][ids.lengths > 0]] = False  # nothing predicts a first token
        sums = np.concatenate([[0], np.cumsum(learned, dtype=np.int64)])
        return sums[ids.offsets[1:]] - sums[ids.offsets[:-1]]  # type: ignore[no-any-return]
    return np.maximum(ids.lengths - np.maximum(prompts, 1), 0)
