"""Running text: `text:FILE_OR_DIR`. A file is one document; documents are cut into sequences, so nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from snugfit.errors import InputError
from snugfit.workloads.data.splits import SPLIT_SEED

HELD_OUT = 0.1
"""Share of the text that validation and test have each."""

_FEW = 10
"""Fewer documents than this are each cut into the three parts."""


def read_documents(spec: str) -> list[str]:
    """Reads text files.

    Args:
        spec: `text:` with a file, or a folder whose `.txt` and `.md` files are read, subfolders included.

    Returns:
        The text of each file, in the order of their names.

    Raises:
        InputError: There is none, or one is empty or no UTF-8.
    """
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


def _read(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"data file {str(file)!r} is not UTF-8 text: {error.reason} at byte {error.start}. Convert it."
        ) from error
    except OSError as error:
        raise InputError(f"data file {str(file)!r} cannot be read: {error.strerror}.") from error
    if not text.strip():
        raise InputError(f"data file {str(file)!r} is empty. Remove it, or put text into it.")
    return text


def cut_documents(documents: Sequence[str]) -> dict[str, list[str]]:
    """Cuts running text into training, validation and test, about 80 / 10 / 10 by characters.

    Whole documents are held out where there are at least ten; of fewer, each gives its last fifth. The cut is the same
    whatever the training seed.

    Args:
        documents: The texts.

    Returns:
        Part -> its documents.
    """
    if len(documents) < _FEW:
        parts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
        for document in documents:
            first, second = (round(len(document) * share) for share in (1 - 2 * HELD_OUT, 1 - HELD_OUT))
            pieces = document[:first], document[first:second], document[second:]
            for part, piece in zip(parts.values(), pieces, strict=True):
                part += [piece] if piece.strip() else []
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
