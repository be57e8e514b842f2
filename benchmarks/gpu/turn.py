"""One process at a time has the card to itself: what is timed waits for its turn. Imports no torch."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TextIO

TURN = "SNUGFIT_TURN"
"""Variable that names the file of the lock; without it nobody else is there."""
_held: list[TextIO] = []
"""Locks of this process, held until it ends."""


def take_turn() -> None:
    """Waits until no other process of this run uses the card for a timing; the turn ends with the process."""
    if TURN in os.environ and not _held:
        take(Path(os.environ[TURN]))


def take(path: Path) -> None:
    """Waits for a lock and holds it until this process ends.

    Args:
        path: Its file.
    """
    file = path.open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    _held.append(file)
