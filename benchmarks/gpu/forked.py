"""Measures rows in processes that share what one has imported, and predicts none: for a card that is lent for minutes.

    python -m benchmarks.gpu.forked [--only accuracy] [--jobs 8] [--minutes 3]

A fresh process takes longer to import its packages than to train three steps. Here one process imports them, and each row is
a fork of it. Rows hold what was measured; `benchmarks.gpu.repredict` predicts them on any machine.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks.gpu import accuracy
from benchmarks.gpu.__main__ import chosen, find_place
from benchmarks.gpu.configurations import BY_NAME
from benchmarks.gpu.harness import PLACE_FILE, place_document
from benchmarks.gpu.one_row import outcome_of
from benchmarks.gpu.part import Case, Part, Place
from benchmarks.gpu.rows import RowFile, stamp, without_paths
from benchmarks.gpu.turn import TURN
from benchmarks.results_file import RESULTS

PACKAGES = ("torch", "torchvision", "timm", "transformers", "snugfit.runs.train", "snugfit.training.step")
"""Imported before the first fork; none of them may start CUDA, which a fork cannot use then."""
FREE_GIB = 30
"""Memory of the card that must be free before another row begins."""
MANY = 1 << 20
"""Draws in the table that large tensors are filled from."""


def _draw_quickly() -> None:
    """Fills large tensors of the host from a table of draws: one processor takes two minutes for a billion of them."""
    import torch

    def quick(slow: Callable[..., torch.Tensor], names: tuple[str, str]) -> Callable[..., torch.Tensor]:
        # A generator of its own: whether a table is there must not change what is drawn elsewhere.
        draws = slow(torch.empty(MANY), 0.0, 1.0, generator=torch.Generator().manual_seed(0))

        def draw(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if self.device.type != "cpu" or self.numel() < 2 * MANY or not self.is_contiguous():
                return slow(self, *args, **kwargs)
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            first, second = given.get(names[0], 0.0), given.get(names[1], 1.0)
            table = draws * (second - first if "to" in names else second) + first
            flat = self.detach().view(-1)
            whole = flat.numel() // MANY * MANY
            flat[:whole].view(-1, MANY).copy_(table)
            flat[whole:].copy_(table[: flat.numel() - whole])
            return self

        return draw

    torch.Tensor.normal_ = quick(torch.Tensor.normal_, ("mean", "std"))  # type: ignore[method-assign]
    torch.Tensor.uniform_ = quick(torch.Tensor.uniform_, ("from", "to"))  # type: ignore[method-assign]


def _measured(part: Part, name: str, place: Place) -> dict[str, Any]:
    """Measures a case, by its `snugfit train` where it has one, in this process and without its prediction."""
    words = BY_NAME[name].train_words(place.kind) if part is accuracy.PART else None
    if words is None:
        return outcome_of(part, name, place)
    from snugfit.cli import main

    said = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="snugfit-") as folder, contextlib.redirect_stdout(said):
        words = [word for word in words if word != "--predict"]
        code = main([*words, "--run-dir", str(Path(folder) / "run"), "--json"])
    if code:
        return {"error": f"snugfit train ended with exit code {code}"}
    return {"measured": accuracy.measured_of(json.loads(said.getvalue()), BY_NAME[name].held(place.kind))}


def _child(part: Part, name: str, place: Place, answer: Connection) -> None:
    import torch

    torch.set_num_threads(2)
    _draw_quickly()
    try:
        found = _measured(part, name, place)
    except BaseException as error:
        found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
    answer.send(found)
    answer.close()
    os._exit(0)


class Row:
    """A row that is being measured in a fork."""

    def __init__(self, part: Part, file: RowFile, case: Case, place: Place) -> None:
        self.case, self.file, self.limit_seconds = case, file, part.limit_seconds
        self.timed = part.timed
        context = multiprocessing.get_context("fork")
        self.answer, theirs = context.Pipe(duplex=False)
        self._child = context.Process(target=_child, args=(part, case.name, place, theirs))
        self._started = time.monotonic()
        self._child.start()
        theirs.close()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def end(self, *, alone: bool) -> dict[str, Any]:
        """Reads the answer, keeps the row and returns it."""
        try:
            found = self.answer.recv() if self.answer.poll() else {"error": f"stopped after {self.seconds:.0f} s"}
        except EOFError:
            found = {"error": "the process ended without an answer"}
        self._child.kill()
        self._child.join()
        if "measured" in found and not (alone or self.timed) and found["measured"].get("step_seconds"):
            found["measured"]["step_seconds"] = None  # others ran beside it
        if "error" in found:
            found["error"] = without_paths(found["error"])
        half = {"half": self.case.half} if self.case.half else {}
        row = {"name": self.case.name, "settings": self.case.settings, **half, **found}
        row |= {"row_seconds": round(self.seconds, 1), **stamp()}
        self.file.add(row)
        return row


def _free_gib(place: Place) -> float:
    if place.kind != "cuda":
        return FREE_GIB
    import pynvml

    pynvml.nvmlInit()
    return float(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).free / 2**30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", default="accuracy", metavar="NAMES", help="parts; default: accuracy")
    parser.add_argument("--minutes", type=float, default=60.0, metavar="N", help="begin no row after this time")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="default: auto")
    parser.add_argument("--match", default="", metavar="TEXT", help="only rows with this in their name")
    parser.add_argument("--jobs", type=int, default=8, metavar="N", help="rows at a time; default: 8")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    place = find_place(args.device)
    if place is None:
        print("nothing is measured: torch sees no CUDA device here", file=sys.stderr)
        return 2
    folder = args.results / place.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PLACE_FILE).write_text(place_document(place), encoding="utf-8")
    waiting = []
    for part in chosen(args.only):
        file = RowFile(folder / f"{part.name}.jsonl")
        cases = [case for case in part.cases(place) if args.match in case.name and not case.left_out]
        waiting += [(part, file, case) for case in cases if not file.is_done(case)]
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking whether there is a card starts CUDA otherwise
    for package in PACKAGES:
        importlib.import_module(package)
    os.environ[TURN] = str(Path(tempfile.mkdtemp(prefix="snugfit-")) / "turn")
    running: list[Row] = []
    while running or (waiting and time.monotonic() < end):
        if waiting and len(running) < args.jobs and time.monotonic() < end and _free_gib(place) >= FREE_GIB:
            running.append(Row(*waiting.pop(0), place))
        ready = wait([row.answer for row in running], timeout=0.3)
        for row in list(running):
            if row.answer in ready or row.seconds > row.limit_seconds:
                running.remove(row)
                found = row.end(alone=args.jobs == 1)
                said = found.get("error") or found.get("left_out") or "measured"
                print(f"{found['row_seconds']:6} {row.case.name} {said}", flush=True)
    print(f"{len(waiting)} rows were not begun")
    return 0


if __name__ == "__main__":
    sys.exit(main())
