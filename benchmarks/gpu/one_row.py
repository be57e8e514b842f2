"""Measures one row in a fresh process: `python -m benchmarks.gpu.one_row PART NAME --place JSON [--lock FILE] --json`.

Packages are imported before the lock is taken, so that the next row's process can load while this one measures; the lock is
held until the process ends. What libraries print goes to stderr; stdout gets one JSON document.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from benchmarks.gpu.part import Part, Place
from benchmarks.gpu.turn import take


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("part")
    parser.add_argument("name")
    parser.add_argument("--place", required=True, help="the fields of a Place, as JSON")
    parser.add_argument("--lock", type=Path, help="file of the lock that one measuring process holds at a time")
    parser.add_argument("--json", action="store_true", help="always on")
    args = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from benchmarks.gpu.parts import PARTS

    fields = json.loads(args.place)
    fields["capability"] = tuple(fields["capability"]) if fields["capability"] else None
    outcome = outcome_of(PARTS[args.part], args.name, Place(**fields), args.lock)
    answers.write(json.dumps(outcome, allow_nan=False))
    answers.flush()
    os._exit(0)  # threads of libraries and half-closed devices have crashed interpreters on their way out


def outcome_of(part: Part, name: str, place: Place, lock: Path | None = None) -> dict[str, Any]:
    """Measures a case, and says what came of it.

    Args:
        part: The part.
        name: Name of one of its cases.
        place: Where it is measured.
        lock: File of the lock, or None.

    Returns:
        `measured` with the threads of a CPU and its seconds of the process, or `left_out` or `error` with the reason.
    """
    import torch

    from snugfit.errors import InputError, SnugfitWarning
    from snugfit.process_memory import keep_freed_memory

    warnings.simplefilter("ignore", SnugfitWarning)
    if place.kind == "cpu" and not part.timed:
        torch.set_num_threads(1)
    else:
        keep_freed_memory()  # settings under which a process can be measured exactly make its steps slow
    case = next(case for case in part.cases(place) if case.name == name)
    try:
        for package in case.packages:
            importlib.import_module(package)
        if lock is not None:
            take(lock)
        found = {"measured": part.measure(name, place), "cpu_seconds": round(time.process_time(), 1)}
        return {**found, "threads": torch.get_num_threads()} if place.kind == "cpu" else found
    except ImportError as error:
        return {"left_out": f"a package is missing: {error}"}
    except InputError as error:
        return {"left_out": str(error)}
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}


if __name__ == "__main__":
    main()
