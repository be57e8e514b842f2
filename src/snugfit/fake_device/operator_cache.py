"""What was asked of this machine's processor, kept in the user's cache folder: one file a processor, torch and threads.

Several workers may write at once: a file is read again before it is replaced, as a whole and in one step. What two of them
learn in the same moment can be lost and is then asked again; a file is never half written. Every file carries the
processor it belongs to and a checksum: what does not agree is left out and written anew. Where nothing can be written,
answers last as long as the process, which costs time only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

FORMAT = 1
"""Changes when what is asked, or how, changes: older answers are then asked anew."""
MOST_ANSWERS = 50_000
"""Answers kept in a file; the oldest go."""


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
        self._identity = json.loads(json.dumps({**identity, "format": FORMAT}))
        name = hashlib.sha256(json.dumps(self._identity, sort_keys=True).encode()).hexdigest()[:24]
        self.path: Path | None = None
        with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: a user without a home
            self.path = (folder or cache_folder()) / f"{name}.json"
        self._answers: dict[str, Any] = {}
        self._new: dict[str, Any] = {}
        self._seen: tuple[int, int] | None = None
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
            state = self.path.stat()
        except OSError:
            return
        if self._seen == (state.st_mtime_ns, state.st_size):
            return
        self._seen = (state.st_mtime_ns, state.st_size)
        self._answers = {**self._read(), **self._answers}

    def save(self) -> None:
        """Writes the new answers, together with what others have written meanwhile."""
        if not self._new or self.path is None:
            return
        merged = {**self._read(), **self._new}
        for digest in list(merged)[: max(0, len(merged) - MOST_ANSWERS)]:
            del merged[digest]
        text = json.dumps({"for": self._identity, "checksum": _checksum(merged), "answers": merged}, indent=0)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _replace(self.path, text)
        except OSError:
            self.path = None  # read-only or full: answers last as long as this process
            return
        self._new = {}

    def _read(self) -> dict[str, Any]:
        assert self.path is not None
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if found["for"] == self._identity and found["checksum"] == _checksum(found["answers"]):
                return dict(found["answers"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
        return {}


def _checksum(answers: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(answers, sort_keys=True).encode()).hexdigest()


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
