"""What was asked of this machine's processor, kept in the user's cache folder: an SQLite file a processor, torch, threads.

Several workers may read and write at once. A file that is none is written anew, and every answer carries a checksum: what
does not agree is asked again. Where nothing can be written, answers last as long as the process, which costs time only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from snugfit.calibrations import cache_folder

FORMAT = 8
"""Changes when what is asked, or how, changes: older answers are then asked anew."""
MOST_ANSWERS = 50_000
"""Answers kept in a file; the oldest go."""


class OperatorCache:
    """The answers of one processor, by the digest of the call."""

    def __init__(self, identity: dict[str, Any], folder: Path | None = None) -> None:
        """Opens the file, or makes it.

        `identity`: what the answers belong to: processor, instructions, torch, threads.
        """
        self._identity = json.dumps({**identity, "format": FORMAT}, sort_keys=True)
        self._answers: dict[str, Any] = {}
        self._file: sqlite3.Connection | None = None
        name = hashlib.sha256(self._identity.encode()).hexdigest()[:24]
        with contextlib.suppress(OSError, RuntimeError, sqlite3.Error):  # RuntimeError: a user without a home
            self.path = (folder or cache_folder("operators")) / f"{name}.sqlite"
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open()

    def _open(self) -> None:
        self._file = sqlite3.connect(self.path, check_same_thread=False)
        self._do("PRAGMA synchronous = OFF")  # what a crash of the machine may break is asked again
        self._do("CREATE TABLE IF NOT EXISTS answers (digest TEXT PRIMARY KEY, answer TEXT, checksum TEXT)")

    def get(self, digest: str) -> Any:
        """Returns the answer for the digest of a call, None where there is none."""
        if digest not in self._answers:
            for answer, checksum in self._do("SELECT answer, checksum FROM answers WHERE digest = ?", digest):
                if checksum == self._checksum(digest, answer):
                    self._answers[digest] = json.loads(answer)
        return self._answers.get(digest)

    def put(self, digest: str, answer: Any) -> None:
        """Stores an answer (plain data) for the digest of a call."""
        self._answers[digest] = answer
        text = json.dumps(answer)
        self._do("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", digest, text, self._checksum(digest, text))
        self._do("DELETE FROM answers WHERE rowid <= (SELECT max(rowid) FROM answers) - ?", MOST_ANSWERS)

    def forget(self) -> None:
        """Drops all answers."""
        self._answers.clear()
        self._do("DELETE FROM answers")

    def _checksum(self, digest: str, answer: str) -> str:
        return hashlib.sha256(f"{self._identity} {digest} {answer}".encode()).hexdigest()

    def _do(self, statement: str, *values: Any) -> list[Any]:
        """Runs a statement and returns its rows; none where the file cannot be used."""
        if self._file is None:
            return []
        try:
            with self._file:
                return self._file.execute(statement, values).fetchall()
        except sqlite3.OperationalError:  # read-only, full or locked
            return []
        except sqlite3.Error:  # damaged
            self._file.close()
            self._file = None
            with contextlib.suppress(OSError):
                self.path.unlink()
                self._open()
            return []
