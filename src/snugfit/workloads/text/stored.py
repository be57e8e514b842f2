"""Columns that stay in their file and are read again whenever they are walked through, so that a table takes no memory.

Reading a text again costs far less than holding it as an object; token ids are what is kept, as one array.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TextIO

import numpy as np

from snugfit.workloads.text.ragged import Indices

QUIET_SECONDS = 3.0
"""What takes no longer is not reported."""
LINE_SECONDS = 15.0
"""Seconds between lines where stderr is no terminal."""


class StoredColumn(Sequence[Any]):
    """A column that is read from its file each time."""

    def __init__(self, count: int, read: Callable[[], Iterator[Any]]) -> None:
        """Remembers where the values come from.

        Args:
            count: How many there are.
            read: Reads them, in their order.
        """
        self._count, self._read = count, read

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return self._read()

    def __getitem__(self, index: Any) -> Any:
        """Reads up to a value: for a message about one row, not for walking through."""
        if isinstance(index, slice):
            return list(self)[index]
        if not 0 <= index < self._count:
            raise IndexError(index)
        return next(islice(self._read(), index, None))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def picked(values: Sequence[Any], indices: Indices) -> Sequence[Any]:
    """Returns some values of a column; those of a stored one stay stored.

    Args:
        values: The column.
        indices: Which, in the order wanted.

    Returns:
        As many values as indices.
    """
    if not isinstance(values, StoredColumn) or not bool(np.all(np.diff(indices) > 0)):
        held = values if isinstance(values, list | tuple) else list(values)
        return [held[int(index)] for index in indices]

    def read() -> Iterator[Any]:
        at = -1
        source = iter(values)
        for index in map(int, indices):
            yield next(islice(source, index - at - 1, None))
            at = index

    return StoredColumn(len(indices), read)


def shown(values: Iterable[Any], what: str, total: int, stream: TextIO | None = None) -> Iterator[Any]:
    """Walks through values and says on stderr how far it is, where that takes its time.

    Args:
        values: What is walked through.
        what: What is being done, such as `reading big.csv`.
        total: How many values there are.
        stream: Where to say it; None: stderr.

    Yields:
        The values.
    """
    show = Shown(what, total, stream)
    done = 0
    for done, value in enumerate(values, start=1):
        yield value
        if not done & 1023:
            show.at(done)
    show.end(done)


class Shown:
    """Says how far something is: one line that is written over on a terminal, a line now and then elsewhere."""

    def __init__(self, what: str, total: int, stream: TextIO | None = None) -> None:
        self._what, self._total = what, max(total, 1)
        self._stream = sys.stderr if stream is None else stream
        self._next = time.monotonic() + QUIET_SECONDS
        self._written = False

    def at(self, done: int) -> None:
        """Says it when it is time.

        Args:
            done: Of the total.
        """
        now = time.monotonic()
        if now < self._next:
            return
        terminal = self._stream.isatty()
        self._next = now + (0.5 if terminal else LINE_SECONDS)
        self._written = True
        self._stream.write(f"{chr(13) if terminal else ''}snugfit: {self._what}: {100 * done // self._total} %")
        self._stream.write("" if terminal else "\n")
        self._stream.flush()

    def end(self, done: int) -> None:
        """Ends the line.

        Args:
            done: Of the total.
        """
        if self._written and self._stream.isatty():
            self._stream.write(f"\rsnugfit: {self._what}: {100 * done // self._total} %\n")
            self._stream.flush()
