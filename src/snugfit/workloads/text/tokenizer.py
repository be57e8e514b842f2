"""Tokenizers: the one in the model's directory, or bytes where there is none.

Without files of its own a model with random weights reads UTF-8 bytes: transformers' ByT5 tokenizer, 256 bytes and three
special tokens, which needs no vocabulary. Pretrained weights only mean something with the tokenizer they were trained
with, so there a missing one is an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from snugfit.errors import InputError, in_words, warn
from snugfit.workloads.hf_files import quiet
from snugfit.workloads.text.ragged import Ids
from snugfit.workloads.text.stored import Column, shown

FILES = (
    *("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt"),
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
)
"""Files of which a directory with a tokenizer has at least one (transformers' own names)."""

_CHUNK = 1000
_CHUNK_CHARACTERS = 2**20
_UNUSED = 1024
"""Rows of a vocabulary that may be spare without a word; larger ones are often rounded up."""


def load_tokenizer(directory: Path | None, *, model: str, pretrained: bool) -> Any:
    """Returns the tokenizer in `directory`, else of bytes; `InputError` where pretrained weights have none."""
    found = [name for name in FILES if directory is not None and (directory / name).is_file()]
    if directory is None or not found:
        if pretrained:
            raise InputError(
                f"model {model!r} has weights and no tokenizer, so nothing says which text its token ids stand for. Put "
                f"the tokenizer's files beside them ({', '.join(FILES[:3])}, ...), or train from scratch on bytes by giving "
                "the path of config.json itself."
            )
        return byte_tokenizer()
    from transformers import AutoTokenizer, ByT5Tokenizer

    try:
        with quiet():
            # For some architectures AutoTokenizer takes the usual class, whatever the files say; ours of bytes has to stay.
            chosen = ByT5Tokenizer if _reads_bytes(directory) else AutoTokenizer
            tokenizer = chosen.from_pretrained(str(directory), local_files_only=True)
            probe = tokenizer("Some words.", verbose=False)["input_ids"]
    except Exception as error:
        needs = "sentencepiece" if any(file.endswith(".model") for file in found) else "what it asks for"
        raise InputError(
            f"the tokenizer of {model!r} cannot be read from {', '.join(found)}: {in_words(error)}. Put its "
            f"tokenizer.json beside them, which needs no other library, or pip install {needs}."
        ) from error
    known = [token for token in probe if token != tokenizer.unk_token_id and token not in tokenizer.all_special_ids]
    if not known:
        raise InputError(
            f"the tokenizer of {model!r} ({', '.join(found)}) knows no ordinary word, so its vocabulary is missing. Put the "
            "rest of its files beside them, such as tokenizer.json."
        )
    return tokenizer


def _reads_bytes(directory: Path) -> bool:
    file = directory / "tokenizer_config.json"
    if not file.is_file():
        return False
    settings = json.loads(file.read_text(encoding="utf-8"))
    return isinstance(settings, dict) and settings.get("tokenizer_class") == "ByT5Tokenizer"


def byte_tokenizer() -> Any:
    """Returns the tokenizer that reads bytes: pad 0, end 1, unknown 2, byte b as b + 3."""
    from transformers import ByT5Tokenizer

    return ByT5Tokenizer(extra_ids=0)


def encode(
    tokenizer: Any,
    texts: Column,
    *,
    special: bool = True,
    limit: int | None = None,
    note: Callable[[int], None] = lambda length: None,
    show: bool = True,
) -> Iterator[Sequence[int] | Ids]:
    """Yields the token ids of texts, encoded in chunks; `show`: says on stderr how far it is.

    `limit`: most tokens of a text: longer ones are cut as the tokenizer cuts, which keeps its special tokens.
    `note`: told how many tokens each text has before it is cut.
    """
    source = iter(shown(texts, f"turning {len(texts)} texts into tokens", len(texts)) if show else texts)
    settings = {"add_special_tokens": special, "return_attention_mask": False, "verbose": False}
    while chunk := list(_chunk_of(source)):
        by_bytes = all(reads_bytes_of(tokenizer, (text,)) for text in chunk)
        if by_bytes:
            encoded: Sequence[Sequence[int] | Ids] = [_byte_ids(tokenizer, text, special) for text in chunk]
        else:
            with quiet():
                encoded = tokenizer(chunk, return_token_type_ids=False, **settings)["input_ids"]
        for ids, text in zip(encoded, chunk, strict=True):
            note(len(ids))
            if limit is None or len(ids) <= limit:
                yield ids
            elif by_bytes:
                yield np.append(ids[: limit - special], ids[-1:]) if special else ids[:limit]
            else:
                yield tokenizer(text, truncation=True, max_length=limit, **settings)["input_ids"]


def _chunk_of(source: Iterator[str]) -> Iterator[str]:
    """The next texts to encode together: a tokenizer needs many times the bytes of a text."""
    room = _CHUNK_CHARACTERS
    for text in islice(source, _CHUNK):
        yield text
        room -= len(text)
        if room <= 0:
            return


def reads_bytes_of(tokenizer: Any, parts: Iterable[str]) -> bool:
    """Returns whether ids are just the bytes of a text: our tokenizer of bytes, no special tokens in it."""
    if type(tokenizer).__name__ != "ByT5Tokenizer":
        return False
    marks = tuple(map(str, tokenizer.get_added_vocab()))
    longest = max(map(len, marks), default=0)
    border = ""
    for part in parts:
        seen = border + part  # a mark may lie across two parts
        if any(mark in seen for mark in marks):
            return False
        border = seen[len(seen) - longest :] if len(seen) > longest else seen
    return True


def encode_bytes(tokenizer: Any, parts: Iterable[str]) -> Iterator[Ids]:
    """Yields the ids of the parts of such a text, with the end token behind them."""
    for part in parts:
        yield _byte_ids(tokenizer, part, special=False)
    yield np.array([tokenizer.eos_token_id], dtype=np.int32)


def _byte_ids(tokenizer: Any, text: str, special: bool) -> Ids:
    """What ByT5's tokenizer makes of plain text, some hundred times faster: byte b is b + 3."""
    data = text.encode("utf-8")
    ids = np.empty(len(data) + special, dtype=np.int32)
    np.add(np.frombuffer(data, dtype=np.uint8), 3, out=ids[: len(data)], casting="unsafe")
    ids[len(data) :] = tokenizer.eos_token_id
    return ids


def end_id(tokenizer: Any) -> int | None:
    """Returns the id that ends a text, or None where the tokenizer has none."""
    for name in ("eos_token_id", "sep_token_id"):
        value = getattr(tokenizer, name, None)
        if value is not None:
            return int(value)
    return None


def pad_id(tokenizer: Any) -> int:
    """Returns the id that fills up shorter sequences: the tokenizer's, else its end, else 0; it is masked in any case."""
    value = getattr(tokenizer, "pad_token_id", None)
    return int(value) if value is not None else end_id(tokenizer) or 0


def check_vocabulary(tokenizer: Any, vocabulary: int, *, model: str) -> None:
    """Raises `InputError` where a token has no row in the embedding; warns where most rows have no token."""
    tokens = len(tokenizer)
    if tokens > vocabulary:
        raise InputError(
            f"the tokenizer has {tokens} tokens and model {model!r} a vocabulary of {vocabulary}, so some tokens have no "
            f"embedding. Build the model with a vocabulary of at least {tokens}, for example "
            f"--model-arg vocab_size={tokens}, or give the tokenizer that belongs to it."
        )
    if vocabulary > tokens + _UNUSED:
        warn(
            f"the tokenizer has {tokens} tokens and model {model!r} a vocabulary of {vocabulary}: most rows of its "
            f"embedding take memory and never learn. --model-arg vocab_size={tokens} leaves them out."
        )
