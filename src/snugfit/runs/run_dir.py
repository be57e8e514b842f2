"""The run directory: everything a run leaves behind, and everything it needs to go on.

    recipe.yaml         how the step was held in memory
    workload.yaml       model, data and training settings
    plan.json           why this recipe, and what it promises, where it was planned for a budget
    metrics.jsonl       one JSON object a line: each step's loss and learning rate, each evaluation
    summary.json        the result, once the run is finished
    model.safetensors   the final weights under the plain model's keys, adapters merged; none where weights are quantised
    config.json, ...    of models of transformers: config and tokenizer, so that the directory loads as a model
    adapter/            what adapters have learned, in peft's format
    checkpoints/        step-00000123.ckpt, the newest two; `.saved` is the step of the last one that was written
    best/               step-00000120.safetensors, what the model held at the best evaluation, where that is kept
    tensorboard/        event files, when asked for

A directory holds one run. One process at a time writes to it; a lock that ends with the process sees to that. Files whose
names the run does not choose are listed in `.beside`, so that a run that replaces this one removes them and nothing else.
Imports no torch before checkpoints are used.
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
from snugfit.training.run_results import BEST, CHECKPOINTS, remove_results
from snugfit.yaml_files import read_yaml

if TYPE_CHECKING:
    from snugfit.runs.checkpoint import CheckpointStore

RECIPE, WORKLOAD, PLAN, METRICS, SUMMARY = "recipe.yaml", "workload.yaml", "plan.json", "metrics.jsonl", "summary.json"
SAVED = ".saved"
"""File with the step of the last checkpoint, by which a run notices that its checkpoints are gone."""
START = ".start"
"""File with a fingerprint of the starting weights, where the run packs them and they came from a file."""
DEFAULT_KEEP = 2
_LOCK = ".lock"


def holds_run(path: Path) -> bool:
    """Returns whether a run was started in a directory, which need not exist; True once `create` has returned."""
    return (path / WORKLOAD).is_file()


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


class RunDirectory:
    """One run on disk, open for writing; a context manager that lets go of the lock and the files."""

    def __init__(self, path: Path, *, keep: int = DEFAULT_KEEP) -> None:
        """Locks an existing directory for this process; `InputError` where another one trains there."""
        self.path = path
        self._metrics: IO[str] | None = None
        self.rows = 0
        self._keep = keep
        with _must_be_writable(
            path, f"A run writes there as it goes on: copy it to where it can, and give that {option('run_dir')}."
        ):
            self._lock = _locked(path / _LOCK)
            try:
                for folder in (path, path / CHECKPOINTS, path / BEST):
                    remove_leftovers(folder)
            except OSError:
                self._lock.close()
                raise

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
            for name in (WORKLOAD, RECIPE, PLAN, METRICS, SUMMARY, SAVED, START):
                (path / name).unlink(missing_ok=True)
            if was_run:
                remove_results(path)
            if plan is not None:
                run._write_text(PLAN, plan)
        return run.described(recipe, workload)

    @classmethod
    def open(cls, path: Path, *, keep: int = DEFAULT_KEEP) -> RunDirectory:
        """Opens the run that a directory holds, to go on with it."""
        if not holds_run(path):
            raise InputError(
                f"run directory {str(path)!r} holds no run to resume. Start one by leaving out {option('resume')}."
            )
        return cls(path, keep=keep)

    def described(self, recipe: Recipe, workload: Mapping[str, Any]) -> RunDirectory:
        """Writes `recipe.yaml` and `workload.yaml`."""
        with _must_be_writable(self.path):
            self._write_text(RECIPE, recipe.to_yaml())
            self._write_text(WORKLOAD, yaml.safe_dump(dict(workload), sort_keys=False))
        return self

    @functools.cached_property
    def checkpoints(self) -> CheckpointStore:
        """The run's checkpoints."""
        from snugfit.runs.checkpoint import CheckpointStore

        return CheckpointStore(self.path / CHECKPOINTS, keep=self._keep)

    def note_checkpoint(self, step: int) -> None:
        """Records that a checkpoint of this step was written."""
        self._write_text(SAVED, f"{step}\n")

    def note_start(self, fingerprint: str) -> None:
        """Records a fingerprint of the weights that the run starts from."""
        with _must_be_writable(self.path):
            self._write_text(START, f"{fingerprint}\n")

    def note_tuned(self, recipe: Recipe, plan: str) -> None:
        """Takes note of the recipe that the first steps have found to be the fastest, and of a `plan.json` that says so."""
        with _must_be_writable(self.path):
            self._write_text(RECIPE, recipe.to_yaml())
            self._write_text(PLAN, plan)

    def check_checkpoints(self) -> None:
        """Raises `InputError` where checkpoints were saved and are gone; a run that never saved may start over."""
        step = self._last_saved()
        folder = self.path / CHECKPOINTS
        if step is None or any(folder.glob("*.ckpt")):
            return
        damaged = len(list(folder.glob("*.damaged")))
        aside = f" ({damaged} damaged ones were set aside as *.damaged)" if damaged else ""
        raise InputError(
            f"run directory {str(self.path)!r} had a checkpoint after step {step}, and {str(folder)!r} holds none now"
            f"{aside}, so the run cannot go on from there. Put step-*.ckpt back, or start the run again from step 0 with "
            f"{option('overwrite')} in place of {option('resume')}."
        )

    def _last_saved(self) -> int | None:
        """The step of the last checkpoint, None where none was written; a summary follows a checkpoint."""
        summary = self.read_summary()
        finished = None if summary is None else int(summary["steps"])
        try:
            return int((self.path / SAVED).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return finished

    def read_recipe(self) -> Recipe:
        """Returns the run's recipe."""
        return Recipe.from_yaml(self.path / RECIPE)

    def read_plan(self) -> str | None:
        """Returns the text of `plan.json`, None where the run was not planned."""
        path = self.path / PLAN
        try:
            return path.read_text(encoding="utf-8") if path.exists() else None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"{path} cannot be read ({error}). Remove it, and the run goes on without a plan."
            ) from error

    def read_workload(self) -> dict[str, Any]:
        """Returns the plain data that `create` was given; `InputError` where the file is no YAML any more."""
        return read_yaml(self.path / WORKLOAD, "run file", example="data: digits")

    def log(self, row: Mapping[str, Any]) -> None:
        """Appends a row with at least `step` to the metrics."""
        if self._metrics is None:
            self._metrics = (self.path / METRICS).open("a", encoding="utf-8")
        self._metrics.write(json.dumps(row) + "\n")
        self.rows += 1

    def flush_metrics(self) -> None:
        """Puts all rows on the disk; called before each checkpoint, so that no checkpoint is ahead of its rows."""
        if self._metrics is not None:
            self._metrics.flush()
            os.fsync(self._metrics.fileno())

    def read_metrics(self) -> list[dict[str, Any]]:
        """Returns the rows so far; a last line that a killed process left unfinished does not count."""
        if self._metrics is not None:
            self._metrics.flush()
        path = self.path / METRICS
        rows = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return rows

    def rewind_metrics(self, rows: int) -> None:
        """Drops the rows after the first `rows`, which a checkpoint counts; a resumed run writes them again."""
        kept = self.read_metrics()[:rows]
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        self._write_result(METRICS, "".join(json.dumps(row) + "\n" for row in kept))
        self.rows = len(kept)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes the result, whose presence says that the run is finished."""
        self._write_result(SUMMARY, json.dumps(summary, indent=2) + "\n")

    def read_summary(self) -> dict[str, Any] | None:
        """Returns the result, None while the run is unfinished; `InputError` where the file is no JSON any more."""
        path = self.path / SUMMARY
        if not path.exists():
            return None
        try:
            summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(summary["steps"], int) or not isinstance(summary.get("steps_per_epoch", 1), int):
                raise TypeError("steps is no whole number")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(
                f"{path} cannot be read, as it was altered ({type(error).__name__}: {error}). Remove it; the run ends anew."
            ) from error
        return summary

    def close(self) -> None:
        """Closes the files and gives up the lock."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        self._lock.close()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_text(self, name: str, text: str) -> None:
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
