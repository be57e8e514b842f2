"""What a run directory holds: everything a run leaves behind, and everything it needs to go on.

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

Files whose names the run does not choose are listed in `.beside`, so that a run that replaces this one removes them and
nothing else. What is here reads; `run_dir.py` writes. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from snugfit.errors import InputError, in_words, option, warn
from snugfit.recipe import Recipe
from snugfit.runs.request import Request
from snugfit.training.run_results import CHECKPOINTS
from snugfit.yaml_files import read_yaml

RECIPE, WORKLOAD, PLAN, METRICS, SUMMARY = "recipe.yaml", "workload.yaml", "plan.json", "metrics.jsonl", "summary.json"
SAVED = ".saved"
"""File with the step of the last checkpoint, by which a run notices that its checkpoints are gone."""
START = ".start"
"""File with a fingerprint of the starting weights, where the run packs them and they came from a file."""
DATA = ".data"
"""File with a fingerprint of the data that the run began with, where that is known by a name."""
CODE = ".code"
"""File with a checksum of the file whose function builds the model, where one does, as the run began."""
SHORTAGES = ".out-of-memory"
"""File with a line for each process that ran out of memory, and for each recipe that was chosen then (`restart.py`)."""


def checksum(file: Path) -> str:
    """Returns a checksum of what a file holds."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def holds_run(path: Path) -> bool:
    """Returns whether a run was started in a directory, which need not exist; True once it was created."""
    return (path / WORKLOAD).is_file()


def check_held(path: Path, *, writes: bool = True) -> None:
    """Raises `InputError` where a directory holds no run to go on with; `writes`: whether this process looks for all."""
    if holds_run(path):
        return
    here = "to resume" if writes else "to resume on this machine"
    todo = (
        f"Start one by leaving out {option('resume')}."
        if writes
        else f"All machines must see the same {option('run_dir')}."
    )
    raise InputError(f"run directory {str(path)!r} holds no run {here}. {todo}")


class RunFiles:
    """A run on disk, to be read; nothing is locked."""

    def __init__(self, path: Path) -> None:
        """Names the directory of a run."""
        self.path = path

    def check_checkpoints(self) -> None:
        """Raises `InputError` where checkpoints were saved and are gone; a run that never saved may start over."""
        step = self.last_saved()
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

    def check_data(self, fingerprint: str) -> None:
        """Raises `InputError` where the data is not what the run began with; an older run does not know."""
        noted = self.path / DATA
        if noted.is_file() and noted.read_text(encoding="utf-8").strip() != fingerprint:
            raise InputError(
                f"the data of the run in {str(self.path)!r} has changed since it began: it has other samples or classes, so "
                "that what is trained and tested on would be cut otherwise. Put it back as it was, or start another run "
                f"({option('weights')}: from what this one has learned)."
            )

    def check_code(self, file: Path) -> None:
        """Warns where the file that builds the model has changed since the run began; an older run does not know."""
        noted = self.path / CODE
        if noted.is_file() and noted.read_text(encoding="utf-8").strip() != checksum(file):
            warn(
                f"{file} has changed since the run in {str(self.path)!r} began. If that changes what the model computes, "
                "this is not the run any more that was stopped: put the file back as it was, or start another run."
            )

    def check_length(self, steps: int) -> None:
        """Raises `InputError` where a run of so many steps would have ended before the last checkpoint of this one."""
        done = self.last_saved()
        if done is not None and steps < done:
            raise InputError(
                f"the run in {str(self.path)!r} has done {done} steps, and {steps} are asked for ({option('epochs')}, "
                f"{option('max_steps')}): none can be taken back. Ask for more, leave that out, or start another run."
            )

    def last_saved(self) -> int | None:
        """Returns the step of the last checkpoint, None where none was written; a summary follows a checkpoint."""
        summary = self.read_summary()
        finished = None if summary is None else int(summary["steps"])
        try:
            return int((self.path / SAVED).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return finished

    def read_request(self) -> Request:
        """Returns what the run was asked to do; `InputError` where that was altered."""
        return Request.from_mapping(self.read_workload())

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

    def read_metrics(self) -> list[dict[str, Any]]:
        """Returns the rows so far; a last line that a killed process left unfinished does not count."""
        path = self.path / METRICS
        rows = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                rows.append(json.loads(line))
            except ValueError:
                break
        return rows

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
                f"{path} cannot be read, as it was altered ({in_words(error)}). Remove it; the run ends anew."
            ) from error
        return summary
