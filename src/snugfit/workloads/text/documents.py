"""Running text: `text:FILE_OR_DIR`. A file is one document; documents are cut into sequences, so nothing is lost.

A document stays in its file and is read in parts whenever it is walked through: token ids are what is kept of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from snugfit.errors import InputError
from snugfit.workloads.data.splits import SPLIT_SEED
from snugfit.workloads.text.stored import opened

HELD_OUT = 0.1
"""Share of the text that validation and test have each."""

_FEW = 10
"""Fewer documents than this are each cut into the three parts."""


_PART = 2**20
"""Characters that are read at a time."""


@dataclasses.dataclass(frozen=True, slots=True)
class StoredText:
    """Characters `start` to `stop` of a UTF-8 file; line ends count as one."""

    file: Path
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, place: slice) -> StoredText:
        start, stop, _ = place.indices(len(self))
        return StoredText(self.file, self.start + start, self.start + max(start, stop))

    def __iter__(self) -> Iterator[str]:
        """Yields the text in parts."""
        at = 0
        for part in _parts_of(self.file):
            if at >= self.stop:
                return
            kept = part[max(self.start - at, 0) : self.stop - at]
            if kept:
                yield kept
            at += len(part)


Text = str | StoredText


def text_parts(text: Text) -> Iterator[str]:
    """Returns a text (given, or stored) in parts that together are all of it."""
    return iter((text,) if isinstance(text, str) else text)


def _parts_of(file: Path) -> Iterator[str]:
    with opened(file) as stream:
        while part := stream.read(_PART):
            yield part


def read_documents(spec: str) -> list[StoredText]:
    """Reads files, or `.txt` and `.md` in folders, once for lengths and mistakes; the text stays on disk."""
    where = spec.partition(":")[2]
    if not where:
        raise InputError(f"data {spec!r} names no file. Write text:FILE_OR_DIR.")
    path = Path(where).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in (".txt", ".md") and file.is_file())
        if not files:
            raise InputError(f"data {spec!r}: {where!r} has no .txt or .md files. Put some there, or name a file.")
    elif path.is_file():
        files = [path]
    else:
        raise InputError(f"data {spec!r}: {where!r} does not exist. Give an existing file or folder.")
    return [_read(file) for file in files]


def _read(file: Path) -> StoredText:
    length, has_words = 0, False
    for part in _parts_of(file):
        length += len(part)
        has_words = has_words or bool(part.strip())
    if not has_words:
        raise InputError(f"data file {str(file)!r} is empty. Remove it, or put text into it.")
    return StoredText(file, 0, length)


def _has_words(text: Text) -> bool:
    return any(part.strip() for part in text_parts(text))


def cut_documents(documents: Sequence[Text]) -> dict[str, list[Text]]:
    """Cuts running text into training, validation and test, about 80 / 10 / 10 by characters.

    Whole documents are held out where there are at least ten; of fewer, each gives its last fifth. The cut is the same
    whatever the training seed.
    """
    if len(documents) < _FEW:
        parts: dict[str, list[Text]] = {"train": [], "validation": [], "test": []}
        for document in documents:
            first, second = (round(len(document) * share) for share in (1 - 2 * HELD_OUT, 1 - HELD_OUT))
            pieces = document[:first], document[first:second], document[second:]
            for part, piece in zip(parts.values(), pieces, strict=True):
                part += [piece] if _has_words(piece) else []
        return parts
    wanted = HELD_OUT * sum(map(len, documents))
    order = np.random.Generator(np.random.PCG64(SPLIT_SEED)).permutation(len(documents))
    part_of = dict.fromkeys(range(len(documents)), "train")
    for name in ("test", "validation"):
        taken = 0
        for index in map(int, order):
            size = len(documents[index])
            if part_of[index] == "train" and (taken == 0 or taken + size <= wanted) and size <= 2 * wanted:
                part_of[index] = name
                taken += size
    return {
        name: [document for index, document in enumerate(documents) if part_of[index] == name]
        for name in ("train", "validation", "test")
    }
