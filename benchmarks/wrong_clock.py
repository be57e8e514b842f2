"""A clock that is wrong on purpose: does a run still find the fastest recipe that fits?

The ten plans of `benchmarks/gpu/plans.py` on cpu, planned by speeds at which one class of operators is three times too fast;
each in a process of its own. Writes `benchmarks/results/wrong_clock.json`.

    python -m benchmarks.wrong_clock [--right] [--only WORD]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from typing import Any
from unittest import mock

from benchmarks.gpu.part import Place
from benchmarks.results_file import write
from snugfit.recording.cpu_clock import HostSpeeds
from snugfit.recording.operator_run import OperatorRun

TOO_FAST = 3.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrongSpeeds(HostSpeeds):
    """Speeds of a processor at which matrix products and convolutions are three times too fast."""

    def inside(self, run: OperatorRun) -> float:
        """Returns the wrong seconds of an operator."""
        right = HostSpeeds.inside(self, run)
        return right / TOO_FAST if run.flops else right


def wrong_speeds() -> WrongSpeeds:
    """Returns the speeds of this machine, made wrong."""
    from snugfit.operators.host_speeds import measured_speeds
    from snugfit.processor import this_processor

    right = measured_speeds(this_processor().threads)
    return WrongSpeeds(**{field.name: getattr(right, field.name) for field in dataclasses.fields(HostSpeeds)})


def row(name: str, *, right: bool) -> dict[str, Any]:
    """Returns what the run by a plan of a wrong (or right) clock finds, beside every other recipe that fits."""
    import torch

    from benchmarks.gpu import plans

    place = Place(kind="cpu", card="cpu", torch_version=torch.__version__)
    if right:
        return plans.measure(name, place)
    with mock.patch("snugfit.operators.host_speeds.host_speeds", wrong_speeds):
        return plans.measure(name, place)


def main() -> None:
    """Measures all pairs, or those whose name has a word in it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", default="", help="pairs whose name has this in it")
    parser.add_argument("--right", action="store_true", help="leave the clock as it is, and write nothing")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        print(json.dumps(row(args.row, right=args.right)))
        return
    from benchmarks.gpu import plans

    words = [sys.executable, "-m", "benchmarks.wrong_clock", *(["--right"] if args.right else [])]
    rows = []
    for case in plans.cases(Place(kind="cpu", card="cpu", torch_version="")):
        if args.only not in case.name:
            continue
        ended = subprocess.run([*words, "--row", case.name], stdout=subprocess.PIPE, text=True, check=False)
        if ended.returncode:
            print(f"{case.name}: failed", file=sys.stderr)
            continue
        found = json.loads(ended.stdout.splitlines()[-1])
        rows.append({"name": case.name, **found})
        print(f"{case.name}: {plans.PART.line({'measured': found})}", flush=True)
    within = sum(one["tuned_over_fastest"] is not None and one["tuned_over_fastest"] <= 1.05 for one in rows)
    print(f"within 1.05 of the fastest: {within} of {len(rows)}")
    if not args.right and not args.only:
        write("wrong_clock", {"too_fast": TOO_FAST, "within": within, "rows": rows})


if __name__ == "__main__":
    main()
