"""Columns that stay in their file and are read again whenever they are walked through, so that a table takes no memory.

Reading a text again costs far less than holding it as an object; token ids are what is kept, as one array.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from snugfit.errors import InputError
from snugfit.workloads.text.ragged import Indices

QUIET_SECONDS = 3.0
"""What takes no longer is not reported."""
LINE_SECONDS = 15.0
"""Seconds between lines where stderr is no terminal."""


class StoredColumn:
    """A column of known length that is read from its file each time."""

    def __init__(self, count: int, read: Callable[[], Iterator[Any]]) -> None:
        self._count, self._read = count, read

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return self._read()


Column = Sequence[Any] | StoredColumn


def picked(values: Column, indices: Indices) -> StoredColumn:
    """Returns the values of a column at rising indices."""

    def read() -> Iterator[Any]:
        at = -1
        source = iter(values)
        for index in map(int, indices):
            yield next(islice(source, index - at - 1, None))
            at = index

    return StoredColumn(len(indices), read)


@contextlib.contextmanager
def opened(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Opens a UTF-8 file; an `InputError` says where it is not UTF-8."""
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            try:
                yield file
            except UnicodeDecodeError as error:
                # The file is decoded by pieces, of which this one is the last that was read.
                buffer: Any = file.buffer
                place = buffer.tell() - len(error.object) + error.start
                raise InputError(
                    f"data file {str(path)!r} is not UTF-8 text: {error.reason} at byte {place}. Convert it."
                ) from error
    except OSError as error:
        raise InputError(f"data file {str(path)!r} cannot be read: {error.strerror}. Give another file.") from error


def shown(values: Iterable[Any], what: str, total: int, place: Callable[[], int] | None = None) -> Iterator[Any]:
    """Yields values, and shows on stderr how far it is of `total` where that takes time.

    On a terminal it is one line that is overwritten, elsewhere a line now and then.

    `place`: returns how much of it is done; None: the values are counted.
    """
    terminal, written = sys.stderr.isatty(), False
    start, end, pause = ("\r", "", 0.5) if terminal else ("", "\n", LINE_SECONDS)
    later = time.monotonic() + QUIET_SECONDS
    for count, value in enumerate(values, start=1):
        yield value
        if time.monotonic() >= later:
            done = count if place is None else place()
            sys.stderr.write(f"{start}snugfit: {what}: {100 * done // max(total, 1)} %{end}")
            sys.stderr.flush()
            written, later = True, time.monotonic() + pause
    if written and terminal:
        sys.stderr.write(f"\rsnugfit: {what}: 100 %\n")
        sys.stderr.flush()
