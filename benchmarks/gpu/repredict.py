"""Predicts rows again that were measured elsewhere: what a change of the simulator does to a card's rows, without the card.

    python -m benchmarks.gpu.repredict nvidia-h200-torch2.11.0 [--match TEXT]

The measured part of each row stays; its `predicted` (of the clock's rows, the predicted seconds in it) is replaced, with
torch's version beside it, since another torch than that of the measurement may choose other kernels.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.harness import PLACE_FILE, Say
from benchmarks.gpu.part import Part, Place
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.rows import RowFile, versions, without_paths
from benchmarks.results_file import RESULTS
from snugfit.errors import SnugfitError

if TYPE_CHECKING:
    from snugfit.workers.pool import Pool


def read_place(folder: Path) -> Place:
    """Returns where a folder's rows were measured.

    Args:
        folder: A folder of results.
    """
    fields = json.loads((folder / PLACE_FILE).read_text(encoding="utf-8"))
    fields["capability"] = tuple(fields["capability"]) if fields["capability"] else None
    return Place(**fields)


def repredict(folder: Path, part: Part, pool: Pool, match: str = "", say: Say = print) -> int:
    """Predicts a part's measured rows again.

    Args:
        folder: A folder of results.
        part: The part.
        pool: Workers.
        match: Text that a row's name must contain.
        say: Gets a line for each row.

    Returns:
        How many rows were predicted.
    """
    place = read_place(folder)
    file = RowFile(folder / f"{part.name}.jsonl")
    cases = {case.name: case for case in part.cases(place)}
    count = 0
    for name, row in list(file.rows.items()):
        if not row.get("measured") or match not in name or name not in cases or not file.was_tried(cases[name]):
            continue
        new: dict[str, Any] = {key: value for key, value in row.items() if key not in ("predicted", "error")}
        try:
            if part.predict is not None:
                new["predicted"] = part.predict(name, place, pool)
            if part.predict_again is not None:
                new["measured"] = part.predict_again(name, row["measured"], place)
        except SnugfitError as error:
            new["error"] = f"prediction: {without_paths(str(error))}"
        new["predicted_with_torch"] = dict(versions())["torch"]
        file.add(new)
        say(f"{name:66} {new['error'] if 'error' in new else part.line(new)}")
        count += 1
    file.tidy(cases.values())
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", help="name of a folder in benchmarks/results")
    parser.add_argument("--match", default="", metavar="TEXT", help="only rows with this in their name")
    args = parser.parse_args()
    from snugfit.workers.pool import Pool

    pool = Pool()
    try:
        for part in PARTS.values():
            if part.predict is not None or part.predict_again is not None:
                repredict(RESULTS / args.folder, part, pool, args.match)
    finally:
        pool.close()


if __name__ == "__main__":
    main()
