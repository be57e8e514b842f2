"""A run directory that is written while its run goes on (`run_files.py` says what is in it).

A directory holds one run. One process at a time writes to it; a lock that ends with the process sees to that. Of several
processes that share a run the first writes, and the others only see. Imports no torch before checkpoints are used.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import yaml

from snugfit.atomic_file import TEMPORARY_PREFIX, remove_leftovers, replaced_file
from snugfit.errors import InputError, TrainingError, option
from snugfit.recipe import Recipe
from snugfit.runs.run_files import (
    CODE,
    DATA,
    METRICS,
    PLAN,
    RECIPE,
    SAVED,
    SHORTAGES,
    START,
    SUMMARY,
    WORKLOAD,
    RunFiles,
    check_held,
    checksum,
    holds_run,
)
from snugfit.training.run_results import BEST, CHECKPOINTS, remove_results

if TYPE_CHECKING:
    from snugfit.runs.checkpoint import CheckpointStore
    from snugfit.runs.checkpoint_parts import Parts
    from snugfit.training.trainer import Trainer

DEFAULT_KEEP = 2
_LOCK = ".lock"


def check_new(path: Path, *, overwrite: bool = False) -> None:
    """Raises `InputError` unless a new run can be written to a directory; leaves nothing behind."""
    if holds_run(path) and not overwrite:
        raise InputError(
            f"run directory {str(path)!r} already holds a run. Go on with it ({option('resume')}), give another "
            f"{option('run_dir')}, or replace it ({option('overwrite')})."
        )
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        with _must_be_writable(path):
            path.mkdir(parents=True, exist_ok=True)
    finally:
        for folder in missing:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


@contextlib.contextmanager
def _must_be_writable(path: Path, hint: str = "") -> Iterator[None]:
    """Context in which a file that cannot be written is an `InputError`: before training it is a wrong path."""
    try:
        yield
        with tempfile.NamedTemporaryFile(prefix=TEMPORARY_PREFIX, dir=path):
            pass
    except OSError as error:
        hint = hint or f"Give another {option('run_dir')}."
        raise InputError(f"run directory {str(path)!r} cannot be written: {error.strerror or error}. {hint}") from error


class RunDirectory(RunFiles):
    """One run on disk, open for writing; a context manager that lets go of the lock and the files."""

    def __init__(self, path: Path, *, keep: int = DEFAULT_KEEP, writes: bool = True) -> None:
        """Locks an existing directory for this process; `InputError` where another one trains there.

        `writes`: whether this process writes; another one does it otherwise, and nothing is locked or changed here.
        """
        super().__init__(path)
        self.rows = 0
        self._keep, self._writes = keep, writes
        self._open = contextlib.ExitStack()
        if not writes:
            return
        with _must_be_writable(
            path, f"A run writes there as it goes on: copy it to where it can, and give that {option('run_dir')}."
        ):
            lock = _locked(path / _LOCK)
            try:
                for folder in (path, path / CHECKPOINTS, path / BEST):
                    remove_leftovers(folder)
            except OSError:
                lock.close()
                raise
        self._open.callback(lock.close)

    @classmethod
    def create(
        cls,
        path: Path,
        recipe: Recipe,
        workload: Mapping[str, Any],
        *,
        plan: str | None = None,
        overwrite: bool = False,
        keep: int = DEFAULT_KEEP,
    ) -> RunDirectory:
        """Starts a new run in a directory; `overwrite`: one that is there is removed first.

        `workload`: plain data: all that `read_workload` must give back to build the same run again.
        `keep`: how many checkpoints stay.
        """
        check_new(path, overwrite=overwrite)
        with _must_be_writable(path):
            path.mkdir(parents=True, exist_ok=True)
            # Every run has a lock, a run half removed too; where there is none, weights are somebody else's.
            was_run = (path / _LOCK).exists()
            run = cls(path, keep=keep)
            # The workload makes the directory a run, so it goes first when a run is removed and is written last.
            for name in (WORKLOAD, RECIPE, PLAN, METRICS, SUMMARY, SAVED, START, DATA, CODE, SHORTAGES):
                (path / name).unlink(missing_ok=True)
            if was_run:
                remove_results(path)
            if plan is not None:
                run._write_text(PLAN, plan)
        run.describe(recipe, workload)
        return run

    @classmethod
    def open(cls, path: Path, *, keep: int = DEFAULT_KEEP, writes: bool = True) -> RunDirectory:
        """Opens the run that a directory holds, to go on with it."""
        check_held(path, writes=writes)
        return cls(path, keep=keep, writes=writes)

    def describe(self, recipe: Recipe, workload: Mapping[str, Any]) -> None:
        """Writes `recipe.yaml` and `workload.yaml`."""
        self._note({RECIPE: recipe.to_yaml(), WORKLOAD: yaml.safe_dump(dict(workload), sort_keys=False)})

    @functools.cached_property
    def checkpoints(self) -> CheckpointStore:
        """The run's checkpoints."""
        from snugfit.runs.checkpoint import CheckpointStore

        return CheckpointStore(self.path / CHECKPOINTS, keep=self._keep)

    def parts_of(self, trainer: Trainer) -> Parts | None:
        """Returns this process's part in checkpoints that several write; None where one process writes all of it."""
        if trainer.ranks is None and not any(path.is_dir() for path in self.checkpoints.paths()):
            return None
        from snugfit.runs.checkpoint_parts import Parts  # loads torch's checkpoints of several processes

        return Parts(trainer)

    def note_checkpoint(self, step: int) -> None:
        """Records that a checkpoint of this step was written."""
        self._write_text(SAVED, f"{step}\n")

    def note_start(self, fingerprint: str) -> None:
        """Records a fingerprint of the weights that the run starts from."""
        self._note({START: f"{fingerprint}\n"})

    def note_data(self, fingerprint: str) -> None:
        """Records a fingerprint of the data that the run begins with."""
        self._note({DATA: f"{fingerprint}\n"})

    def note_code(self, file: Path) -> None:
        """Records a checksum of the file whose function builds the model."""
        self._note({CODE: f"{checksum(file)}\n"})

    def note_tuned(self, recipe: Recipe, plan: str) -> None:
        """Takes note of the recipe that the first steps have found to be the fastest, and of a `plan.json` that says so."""
        self._note({RECIPE: recipe.to_yaml(), PLAN: plan})

    def log(self, row: Mapping[str, Any]) -> None:
        """Appends a row with at least `step` to the metrics."""
        self.rows += 1
        if self._writes:
            self._metrics.write(json.dumps(row) + "\n")

    @functools.cached_property
    def _metrics(self) -> IO[str]:
        return self._open.enter_context((self.path / METRICS).open("a", encoding="utf-8", buffering=1))

    def flush_metrics(self) -> None:
        """Puts all rows on the disk; called before each checkpoint, so that no checkpoint is ahead of its rows."""
        if self._writes and self.rows:
            os.fsync(self._metrics.fileno())

    def rewind_metrics(self, rows: int) -> None:
        """Drops the rows after the first `rows`, which a checkpoint counts; called before the first row is logged."""
        self.rows = rows
        if self._writes:
            kept = self.read_metrics()[:rows]
            self._write_result(METRICS, "".join(json.dumps(row) + "\n" for row in kept))
            self.rows = len(kept)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes the result, whose presence says that the run is finished."""
        self._write_result(SUMMARY, json.dumps(summary, indent=2) + "\n")

    def close(self) -> None:
        """Closes the files and gives up the lock."""
        self._open.close()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note(self, texts: Mapping[str, str]) -> None:
        """Writes files without which the run cannot begin."""
        if self._writes:
            with _must_be_writable(self.path):
                for name, text in texts.items():
                    self._write_text(name, text)

    def _write_text(self, name: str, text: str) -> None:
        if self._writes:
            with replaced_file(self.path / name) as temporary:
                temporary.write_text(text, encoding="utf-8")

    def _write_result(self, name: str, text: str) -> None:
        """Writes something that a run has computed: a failure here loses work, so it is no `InputError`."""
        try:
            self._write_text(name, text)
        except OSError as error:
            raise TrainingError(f"{self.path / name} cannot be written: {error.strerror or error}.") from error


def _locked(path: Path) -> IO[str]:
    """Opens a lock file. The system releases the lock when the process ends, however it ends."""
    file = path.open("w")
    try:
        import fcntl
    except ImportError:  # no advisory locks on this system
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise InputError(
            f"another process is training in run directory {str(path.parent)!r}. Wait for it, or use another "
            f"{option('run_dir')}."
        ) from error
    return file
