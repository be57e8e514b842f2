"""Rows of a part in a JSON-lines file: appended as they are measured, the newest of a name counts. Imports no torch."""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import json
import platform
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.gpu.part import Case

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "torch", "torchvision", "timm", "transformers", "peft", "torchao", "bitsandbytes", "accelerate", "lightning", "triton",
    "liger-kernel",
)  # fmt: skip
"""Packages whose versions are kept with each row."""


class RowFile:
    """The rows of one part."""

    def __init__(self, path: Path) -> None:
        """Reads what is there.

        Args:
            path: The file; it need not exist. A last line that was cut off, as by a killed run, is left out.
        """
        self.path = path
        self.rows = {row["name"]: row for row in read_rows(path)}
        self._lock = threading.Lock()

    def is_done(self, case: Case) -> bool:
        """Returns whether a case was measured with these very settings, and nothing went wrong.

        Args:
            case: The case.
        """
        row = self.rows.get(case.name)
        return self.was_tried(case) and row is not None and not row.get("error") and not row.get("left_out")

    def was_tried(self, case: Case) -> bool:
        """Returns whether there is a row of a case with these very settings.

        Args:
            case: The case.
        """
        row = self.rows.get(case.name)
        return row is not None and row["settings"] == json.loads(json.dumps(case.settings))

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row; safe from several threads.

        Args:
            row: Plain data with a `name`.
        """
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            self.rows[row["name"]] = row

    def tidy(self, cases: Iterable[Case]) -> None:
        """Writes the file anew with one row for each case, in the order of the cases; rows of other cases are dropped.

        Args:
            cases: All cases of the part.
        """
        if not self.path.is_file():
            return
        kept = [self.rows[case.name] for case in cases if case.name in self.rows]
        new = self.path.with_suffix(".new")
        new.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        new.replace(self.path)
        self.rows = {row["name"]: row for row in kept}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file, the newest of each name, in the order of their first appearance.

    Args:
        path: A JSON-lines file; it need not exist.

    Returns:
        Rows; a last line that was cut off is left out.
    """
    if not path.is_file():
        return []
    newest: dict[str, dict[str, Any]] = {}
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            if number + 1 < len(lines):
                raise
            continue
        newest[row["name"]] = row
    return list(newest.values())


def stamp() -> dict[str, Any]:
    """Returns what a row belongs to: versions, processor, date."""
    from benchmarks.results_file import processor

    return {
        "versions": dict(versions()),
        "processor": processor(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


@functools.cache
def versions() -> tuple[tuple[str, str], ...]:
    """Returns name and version of Python and of the packages at hand."""
    found = [("python", platform.python_version())]
    for name in PACKAGES:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(found)


def without_paths(text: str) -> str:
    """Returns a message without the folders of this machine.

    Args:
        text: A message of an error.
    """
    for folder, short in ((str(ROOT), "."), (sys.prefix, "<python>"), (str(Path.home()), "~")):
        if len(folder) > 1:
            text = text.replace(folder, short)
    return text
