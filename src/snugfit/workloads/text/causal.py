"""Token sequences for `causal-lm`: texts, prompts with what follows them, and running text that is cut into pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from snugfit.workloads.text.documents import Text, text_parts
from snugfit.workloads.text.ragged import Ids, Ragged
from snugfit.workloads.text.stored import Column, StoredColumn, shown
from snugfit.workloads.text.tokenizer import encode, encode_bytes, end_id, reads_bytes_of


def encode_texts(tokenizer: Any, texts: Column) -> Iterator[Ids]:
    """Yields whole texts as token ids, each ended by the tokenizer's end token."""
    return (_ended(ids, tokenizer) for ids in encode(tokenizer, texts))


def encode_pairs(tokenizer: Any, prompts: Column, completions: Column) -> Iterator[Ids]:
    """Yields prompts, which are not learned, and their answers as token ids.

    The two are encoded separately, so that no token is half prompt; a line break is put between where neither has a
    space.
    """

    def parted() -> Iterator[str]:
        for prompt, completion in zip(prompts, completions, strict=True):
            apart = not prompt or prompt[-1].isspace() or completion[0].isspace()
            yield prompt if apart else prompt + "\n"

    end = end_id(tokenizer)
    fronts = encode(tokenizer, StoredColumn(len(prompts), parted))
    backs = encode(tokenizer, completions, special=False, show=False)
    for ids, back in zip(fronts, backs, strict=True):
        front = np.asarray(ids, dtype=np.int32)
        front = front[:-1] if len(front) and front[-1] == end else front
        yield np.concatenate([~front, _ended(back, tokenizer)])


def _ended(given: Sequence[int] | Ids, tokenizer: Any) -> Ids:
    ids = np.asarray(given, dtype=np.int32)
    end = end_id(tokenizer)
    if end is None or (len(ids) and ids[-1] == end):
        return ids
    return np.append(ids, np.int32(end))


def encode_documents(tokenizer: Any, documents: Sequence[Text]) -> Iterator[Iterator[Ids]]:
    """Yields documents as token ids, each in parts, ended by the tokenizer's end token."""
    for text in shown(documents, f"turning {len(documents)} texts into tokens", len(documents)):
        if reads_bytes_of(tokenizer, text_parts(text)):
            yield encode_bytes(tokenizer, text_parts(text))
        else:
            whole = encode(tokenizer, ["".join(text_parts(text))], show=False)
            yield (_ended(ids, tokenizer) for ids in whole)


def blocks(documents: Iterable[Iterable[Ids]], length: int) -> Ragged:
    """Cuts long sequences into pieces; a piece of one token is dropped, because nothing predicts it."""

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
