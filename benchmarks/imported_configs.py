"""Reads the configurations of other projects' repositories, fetched and not part of this one.

    python -m benchmarks.imported_configs NAME=FOLDER [NAME=FOLDER ...]

Each YAML and JSON file of a folder is read as for four GPUs, in that folder, and its recipe and settings are checked against
each other. What is counted: read, read with every field understood, refused in words, and files that are no configuration.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.results_file import write
from snugfit.errors import InputError
from snugfit.interop.imports import import_config
from snugfit.recipe import Recipe
from snugfit.run import Run, by_owner
from snugfit.workload import Workload

GPUS = 4
NONE = "is no configuration of"


def counted(name: str, folder: Path, refused: Counter[str], left_out: Counter[str]) -> dict[str, Any]:
    """Reads a folder; returns its row, and counts why files are refused and which keys are left out."""
    row = {"of": name, "read": 0, "understood": 0, "refused": 0, "none": 0}
    os.chdir(folder)
    for path in sorted(folder.rglob("*")):
        if path.suffix not in (".yml", ".yaml", ".json") or not path.is_file():
            continue
        try:
            found = import_config(path, ranks=GPUS)
            recipe, settings = by_owner(found.settings)
            Run(Recipe.from_mapping(recipe), Workload.from_mapping({"batch_size": 16, **settings, "gpus": GPUS}))
        except InputError as error:
            row["none" if NONE in str(error) else "refused"] += 1
            if NONE not in str(error):
                refused[str(error).split(" is a training")[0].split(":")[0].partition("\n")[0]] += 1
            continue
        row["read"] += 1
        row["understood"] += not found.not_understood
        left_out.update(key.rpartition(": ")[2] for key in found.not_understood)
    return row


def main() -> None:
    """Reads every folder and writes `results/imported_configs.json`."""
    refused: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    folders = [word.partition("=") for word in sys.argv[1:]]
    if not folders:
        raise SystemExit(__doc__)
    rows = [counted(name, Path(folder).resolve(), refused, left_out) for name, _, folder in folders]
    print(*rows, refused.most_common(20), left_out.most_common(20), sep="\n")
    write(
        "imported_configs",
        {"rows": rows, "most_refused": refused.most_common(5), "most_not_understood": left_out.most_common(8)},
    )


if __name__ == "__main__":
    main()
