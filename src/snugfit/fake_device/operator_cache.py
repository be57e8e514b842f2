"""What was asked of this machine's processor, kept in the user's cache folder: one file a processor, torch and threads.

Every recording looks for what others have learnt and adds what is new, so a file only grows: new answers are lines at its
end, and only what is new is read. The first line says which processor the file belongs to, every other one has a checksum:
what does not agree is left out, be it damaged or half written. Several workers may write at once; what two of them learn
in the moment in which a file is begun can be lost and is then asked again. Where nothing can be written, answers last as
long as the process, which costs time only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FORMAT = 1
"""Changes when what is asked, or how, changes: older answers are then asked anew."""
MOST_ANSWERS = 50_000
"""Answers kept in a file; from twice as many on the oldest go."""


def cache_folder() -> Path:
    """Returns the folder of the user's caches that is ours; it need not exist."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "snugfit" / "operators"


class OperatorCache:
    """The answers of one processor, by the digest of the call."""

    def __init__(self, identity: dict[str, Any], folder: Path | None = None) -> None:
        """Reads what is there.

        Args:
            identity: What the answers belong to: processor, instructions, torch, threads.
            folder: Where the file lies; None: the user's cache folder.
        """
        whose = json.dumps({**identity, "format": FORMAT}, sort_keys=True)
        self._first_line = whose.encode() + b"\n"
        self.path: Path | None = None
        with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: a user without a home
            self.path = (folder or cache_folder()) / f"{hashlib.sha256(whose.encode()).hexdigest()[:24]}.jsonl"
        self._answers: dict[str, Any] = {}
        self._new: dict[str, Any] = {}
        self._file: int | None = None
        """Which file was read, by its inode; None: none that is ours."""
        self._read_to = 0
        """The end of the last whole line that was read."""
        self.refresh()

    def __len__(self) -> int:
        """The number of answers."""
        return len(self._answers)

    def get(self, digest: str) -> Any:
        """Returns an answer, None where there is none.

        Args:
            digest: The call.
        """
        return self._answers.get(digest)

    def put(self, digest: str, answer: Any) -> None:
        """Takes an answer; `save` writes it.

        Args:
            digest: The call.
            answer: Plain data.
        """
        self._answers[digest] = self._new[digest] = answer

    def refresh(self) -> None:
        """Takes what other processes have written since."""
        if self.path is None:
            return
        try:
            with self.path.open("rb") as file:
                state = os.fstat(file.fileno())
                if state.st_ino != self._file or state.st_size < self._read_to:  # another file by now
                    ours = file.readline() == self._first_line
                    self._file, self._read_to = (state.st_ino, len(self._first_line)) if ours else (None, 0)
                if self._file is None:
                    return
                file.seek(self._read_to)
                text = file.read()
        except OSError:
            self._file = None
            return
        whole = text[: text.rfind(b"\n") + 1]  # another process may be writing the rest
        self._read_to += len(whole)
        self._answers.update(answer for line in whole.splitlines() for answer in _read(line))

    def save(self) -> None:
        """Writes the new answers; begins the file anew where it is not ours, or has become too long."""
        if not self._new or self.path is None:
            return
        self.refresh()
        try:
            if self._file is None or len(self._answers) > 2 * MOST_ANSWERS:
                self._answers = dict(list(self._answers.items())[-MOST_ANSWERS:])
                self.path.parent.mkdir(parents=True, exist_ok=True)
                _replace(self.path, self._first_line + _lines(self._answers.items()))
            else:
                _append(self.path, _lines(self._new.items()))
        except OSError:
            self.path = None  # read-only or full: answers last as long as this process
            return
        self._new = {}


def _lines(answers: Iterable[tuple[str, Any]]) -> bytes:
    texts = (json.dumps(answer).encode() for answer in answers)
    return b"".join(b"%s %s\n" % (_checksum(text), text) for text in texts)


def _read(line: bytes) -> Iterable[tuple[str, Any]]:
    """The answer of a line, or none."""
    checksum, _, text = line.partition(b" ")
    if text and checksum == _checksum(text):
        digest, answer = json.loads(text)
        yield digest, answer


def _checksum(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:16].encode()


def _append(path: Path, lines: bytes) -> None:
    """Writes in one go, which no other writer comes between, from a line's beginning: the last may have been cut off."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(handle, b"\n" + lines)
    finally:
        os.close(handle)


def _replace(path: Path, text: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
