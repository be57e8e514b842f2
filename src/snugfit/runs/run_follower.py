"""A run directory as all processes of a run but the first see it: they read what stands there, and write nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snugfit.errors import InputError, option
from snugfit.recipe import Recipe
from snugfit.runs.run_dir import DEFAULT_KEEP, RunDirectory, holds_run


class FollowedRun(RunDirectory):
    """The run directory that the first process writes, as the others see it."""

    def __init__(self, path: Path, *, keep: int = DEFAULT_KEEP) -> None:
        """Takes a directory, which need not exist yet."""
        self.path, self.rows, self._keep, self._metrics = path, 0, keep, None

    @classmethod
    def open(cls, path: Path, *, keep: int = DEFAULT_KEEP) -> FollowedRun:
        """Opens the run that a directory holds; `InputError` where this process sees none there."""
        if not holds_run(path):
            raise InputError(
                f"run directory {str(path)!r} holds no run to resume on this machine. All machines must see the same "
                f"{option('run_dir')}."
            )
        return cls(path, keep=keep)

    def described(self, recipe: Recipe, workload: Mapping[str, Any]) -> FollowedRun:
        """Writes nothing."""
        return self

    def note_checkpoint(self, step: int) -> None:
        """Writes nothing."""

    def note_tuned(self, recipe: Recipe, plan: str) -> None:
        """Writes nothing."""

    def note_start(self, fingerprint: str) -> None:
        """Writes nothing."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Writes nothing."""
        self.rows += 1

    def rewind_metrics(self, rows: int) -> None:
        """Writes nothing."""
        self.rows = rows

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes nothing."""

    def close(self) -> None:
        """Nothing is open."""
