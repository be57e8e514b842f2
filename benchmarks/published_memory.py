"""Memory against what others measured on real cards: recorded allocator histories, and batches that ran and did not.

    python -m benchmarks.published_memory TRUTH [--minutes 20] [--more] [--code CODE] [--again]

Each batch and each row of `--more` is written when it is known, and the next call goes on where this one stopped; `--again`
forgets what is there.

TRUTH is a folder with `traces/`, `kineto/`, `batch_bounds.jsonl.gz` and `more_memory.jsonl.gz`, which is not part of this
repository. The result holds our numbers, and the names by which a row can be found again. Nothing in the package is fitted
to it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from benchmarks import batch_bounds, real_sequences, real_traces, results_file
from benchmarks.more_memory import more_memory
from snugfit.fields import as_data
from snugfit.workers.pool import Pool

NAME = "published_memory"


def traces(folder: Path) -> dict[str, Any]:
    """Replays every history of a folder."""
    rows = [{"name": name, **as_data(found)} for name, found in real_traces.histories(folder)]
    totals = ("requests", "same_block", "segments", "same_reserved")
    return {
        "histories": len(rows),
        **{name: sum(row[name] for row in rows) for name in totals},
        "equal_peaks": sum(row["peak_reserved_bytes"] == row["predicted_peak_reserved_bytes"] for row in rows),
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("truth", type=Path, help="folder with traces and batch_bounds.jsonl.gz")
    parser.add_argument("--minutes", type=float, default=20, help="stop after so many (default: %(default)s)")
    parser.add_argument(
        "--again", action="store_true", help="forget the batches that are there, and with --more its rows"
    )
    parser.add_argument("--more", action="store_true", help="also the peaks of more runs (more_memory.py, ten minutes)")
    parser.add_argument("--code", type=Path, help="checkouts of the code of recorded steps (real_sequences.py)")
    options = parser.parse_args()
    path = results_file.RESULTS / f"{NAME}.json"
    there = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found: dict[str, Any] = {name: there.get(name, {}) for name in ("traces", "sequences", "batches", "more")}
    if options.again:
        found |= {"batches": {}} | ({"more": {}} if options.more else {})
    _batches(found, options.truth, options.minutes)
    found["traces"] = traces(options.truth / "traces")
    if options.code is not None:
        found["sequences"] = real_sequences.sequences(options.truth, options.code)
    results_file.write(NAME, found)
    if options.more:
        more_memory(options.truth, options.code, found["more"], lambda more: _keep(found, "more", more))
    print(json.dumps(batch_bounds.summary(found["batches"]["rows"])))


def _batches(found: dict[str, Any], truth: Path, minutes: float) -> None:
    """Predicts batches that are not there yet, for so long."""
    rows = list(found["batches"].get("rows", []))
    done = {(row["model"], row["channels_last"]) for row in rows}
    pool, end = Pool(), time.monotonic() + 60 * minutes
    try:
        for row in batch_bounds.rows_of(truth / "batch_bounds.jsonl.gz"):
            if time.monotonic() > end:
                break
            if (row["model"], row["channels_last"]) not in done:
                rows.append(batch_bounds.predicted(row, pool))
                print(*rows[-1].values(), flush=True)
                _keep(found, "batches", {**batch_bounds.summary(rows), "rows": rows})
    finally:
        pool.close()
    found["batches"] = {**batch_bounds.summary(rows), "rows": rows}


def _keep(found: dict[str, Any], name: str, part: dict[str, Any]) -> None:
    """Writes all that is known with a part of it."""
    found[name] = part
    results_file.write(NAME, found)


if __name__ == "__main__":
    main()
