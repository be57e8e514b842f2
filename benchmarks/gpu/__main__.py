"""`python -m benchmarks.gpu`: measures what is missing, and says what came out."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu.harness import Harness, Options
from benchmarks.gpu.part import Part, Place
from benchmarks.gpu.parts import PARTS
from benchmarks.results_file import RESULTS
from snugfit.errors import InputError, did_you_mean

EPILOG = """\
examples:
  python -m benchmarks.gpu                                   everything that is missing
  python -m benchmarks.gpu --only accuracy,traces --minutes 9
  python -m benchmarks.gpu --device cpu --only accuracy --match vit --again
"""


def find_place(device: str) -> Place | None:
    """Returns where rows are measured, found out in a process of its own so that none here holds the card.

    Args:
        device: auto, cuda or cpu.

    Returns:
        The place; None where cuda was asked for and is not there.

    Raises:
        InputError: torch does not start.
    """
    run = subprocess.run([sys.executable, "-m", "benchmarks.gpu.place_probe"], capture_output=True, text=True)
    if run.returncode:
        raise InputError(f"torch does not start: {run.stderr.strip().splitlines()[-1:]}")
    found = json.loads(run.stdout.splitlines()[-1])
    if device == "cuda" and found["kind"] != "cuda":
        return None
    if device == "cpu" or found["kind"] == "cpu":
        return Place(kind="cpu", card="cpu", torch_version=found["torch_version"])
    return Place(**{**found, "capability": tuple(found["capability"])})


def chosen(names: str) -> list[Part]:
    """Returns parts by their names.

    Args:
        names: Names with commas between them; empty for all.

    Raises:
        InputError: A name is unknown.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in PARTS:
            raise InputError(f"part {name!r} is unknown; {did_you_mean(name, PARTS)}")
    return [part for part in PARTS.values() if not wanted or part.name in wanted]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__.split("\n", 1)[0],
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="NAMES", help=f"parts, of {', '.join(PARTS)}. Default: all.")
    parser.add_argument("--minutes", type=float, metavar="N", help="stop before this time is over")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: auto")
    parser.add_argument("--again", action="store_true", help="measure rows that are there already again")
    parser.add_argument("--rows", type=int, metavar="N", help="the first N rows of each part only")
    parser.add_argument("--match", default="", metavar="TEXT", help="only rows with this in their name")
    parser.add_argument("--jobs", type=int, metavar="N", help="rows at a time where nothing is timed")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    args = parser.parse_args()
    started = time.monotonic()
    deadline = None if args.minutes is None else started + 60 * args.minutes
    try:
        parts = chosen(args.only)
        place = find_place(args.device)
    except InputError as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 2
    if place is None:
        print(
            "nothing is measured: torch sees no CUDA device here. `--device cpu` measures smaller cases by the same code."
        )
        return 0
    options = Options(deadline=deadline, again=args.again, rows=args.rows, match=args.match, jobs=args.jobs)
    harness = Harness(place, args.results, options, say=lambda line: print(line, flush=True))
    try:
        counts = harness.run(parts)
    finally:
        harness.close()
    minutes = (time.monotonic() - started) / 60
    print(f"{harness.folder}: " + ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in counts.items()))
    print(json.dumps({"place": place.folder, "minutes": round(minutes, 2), **counts}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
