"""Runs parts row by row: each row in a fresh process with a time limit; what is there already is left alone."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.part import Case, Part, Place, Read
from benchmarks.gpu.rows import RowFile, stamp, without_paths
from snugfit.errors import InputError, SnugfitError
from snugfit.measure.fresh import CommandError, run_json

if TYPE_CHECKING:
    from snugfit.workers.pool import Pool

Say = Callable[[str], None]
PLACE_FILE = "place.json"
"""In each folder of results: where its rows were measured."""
SPARE_SECONDS = 10.0
"""Time before the end of the given minutes in which nothing is measured any more."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How much is measured."""

    deadline: float | None = None
    """`time.monotonic()` at which all must be over; None: no limit."""
    again: bool = False
    """Whether rows that are there are measured again."""
    rows: int | None = None
    """The most rows of a part; None: all."""
    match: str = ""
    """Text that a row's name must contain."""
    jobs: int | None = None
    """Rows at a time of parts that time nothing; None: as many as the place has room for."""


def place_document(place: Place) -> str:
    """Returns what is written down of a place.

    Args:
        place: Where rows are measured.
    """
    return json.dumps(dataclasses.asdict(place), indent=1) + "\n"


class Harness:
    """Measures the rows of parts in one place."""

    def __init__(self, place: Place, results: Path, options: Options, *, say: Say = print) -> None:
        """Starts nothing yet.

        Args:
            place: Where rows are measured.
            results: Folder of all results; the place's own folder is in it.
            options: How much is measured.
            say: Gets a line for each row.
        """
        self.place, self.options, self.say = place, options, say
        self.folder = results / place.folder
        self._lock = Path(tempfile.mkdtemp(prefix="snugfit-")) / "one-at-a-time"
        self._pool: Pool | None = None
        self._durations: dict[str, list[float]] = {}

    def close(self) -> None:
        """Ends the workers."""
        if self._pool is not None:
            self._pool.close()
        self._lock.unlink(missing_ok=True)
        self._lock.parent.rmdir()

    def run(self, parts: Sequence[Part]) -> dict[str, int]:
        """Measures what is missing: the first cases of every part, then the rest, of the part with the least left first.

        Args:
            parts: The parts, the most informative first.

        Returns:
            How many rows were `measured`, `left_out`, `failed`, how many were there `before`, and are still `missing`.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / PLACE_FILE).write_text(place_document(self.place), encoding="utf-8")
        counts = dict.fromkeys(("measured", "left_out", "failed", "before", "missing"), 0)
        files = {part.name: RowFile(self.folder / f"{part.name}.jsonl") for part in parts}
        wanted = {part.name: self._wanted(part) for part in parts}
        for part in parts:
            counts["before"] += sum(files[part.name].is_done(case) for case in wanted[part.name])
        rounds = [(part, wanted[part.name][: part.first]) for part in parts]
        rest = [(part, wanted[part.name][part.first :]) for part in parts]
        rounds += sorted(rest, key=lambda pair: len(pair[1]))
        for part, cases in rounds:
            self._measure(part, cases, files[part.name], counts)
        for part in parts:
            files[part.name].tidy(part.cases(self.place))
        return counts

    def _wanted(self, part: Part) -> list[Case]:
        cases = [case for case in part.cases(self.place) if self.options.match in case.name]
        return cases[: self.options.rows] if self.options.rows is not None else cases

    def _measure(self, part: Part, cases: Sequence[Case], file: RowFile, counts: dict[str, int]) -> None:
        """Measures cases, those that were never tried first; several at a time where nothing is timed."""
        todo = [case for case in cases if self.options.again or not file.is_done(case)]
        todo.sort(key=lambda case: file.was_tried(case))
        waiting: queue.SimpleQueue[Case] = queue.SimpleQueue()
        for case in todo:
            waiting.put(case)
        counting = threading.Lock()

        def work() -> None:
            while True:
                try:
                    case = waiting.get_nowait()
                except queue.Empty:
                    return
                limit = self._limit(part)
                if limit is None:
                    with counting:
                        counts["missing"] += 1
                    continue
                row = self._row(part, case, limit)
                if limit < part.limit_seconds and row.get("error", "").startswith("stopped after"):
                    with counting:
                        counts["missing"] += 1  # the whole run's time was over, not the row's own
                    continue
                file.add(row)
                kind = "failed" if "error" in row else "left_out" if "left_out" in row else "measured"
                with counting:
                    counts[kind] += 1
                    self.say(self._line(part, row))

        threads = [threading.Thread(target=work) for _ in range(self._width(part))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _width(self, part: Part) -> int:
        """Rows at a time. On a card the second one only loads its packages; on a CPU it would take time from the first."""
        if self.options.jobs is not None and not part.timed:
            return self.options.jobs
        if self.place.kind == "cuda":
            return 2 if part.command is None else 1
        return 1 if part.timed else min(2, os.cpu_count() or 1)

    def _limit(self, part: Part) -> float | None:
        """Seconds the next row may take; None where the time that is left will not do."""
        if self.options.deadline is None:
            return part.limit_seconds
        left = self.options.deadline - SPARE_SECONDS - time.monotonic()
        done = self._durations.get(part.name)
        needed = 1.5 * statistics.median(done) if done else min(20.0, part.limit_seconds)
        return min(part.limit_seconds, left) if left >= needed else None

    def _row(self, part: Part, case: Case, limit_seconds: float) -> dict[str, Any]:
        started = time.monotonic()
        row: dict[str, Any] = {"name": case.name, "settings": case.settings}
        if case.half is not None:
            row["half"] = case.half
        missing = [package for package in case.packages if importlib.util.find_spec(package) is None]
        if case.left_out or missing:
            reason = case.left_out or f"not installed: {', '.join(missing)}"
            return {**row, "left_out": reason, **stamp()}
        command = part.command(case.name, self.place) if part.command is not None else None
        if command is not None:
            row.update(self._by_command(*command, limit_seconds))
            return self._finished(part, row, started)
        prediction: dict[str, Any] = {}
        predicting = threading.Thread(target=lambda: prediction.update(self._predict(part, case)))
        predicting.start()
        if part.timed and self.place.kind == "cpu":
            predicting.join()
        outcome = self._fresh(part, case, limit_seconds)
        predicting.join()
        row.update(prediction)
        row.update(outcome)
        if "left_out" in prediction or "left_out" in outcome:
            row.pop("error", None)
        return self._finished(part, row, started)

    def _finished(self, part: Part, row: dict[str, Any], started: float) -> dict[str, Any]:
        for key in ("error", "left_out"):
            if key in row:
                row[key] = without_paths(row[key])
        seconds = time.monotonic() - started
        self._durations.setdefault(part.name, []).append(seconds)
        return {**row, "row_seconds": round(seconds, 1), **stamp()}

    def _predict(self, part: Part, case: Case) -> dict[str, Any]:
        if part.predict is None:
            return {}
        try:
            return {"predicted": part.predict(case.name, self.place, self._workers())}
        except InputError as error:
            return {"left_out": str(error)}
        except SnugfitError as error:
            return {"error": f"prediction: {error}"}

    def _workers(self) -> Pool:
        from snugfit.workers.pool import Pool

        if self._pool is None:
            self._pool = Pool(2)
        return self._pool

    def _fresh(self, part: Part, case: Case, limit_seconds: float) -> dict[str, Any]:
        argv = [part.name, case.name, "--place", json.dumps(dataclasses.asdict(self.place))]
        if self.place.kind == "cuda" and (part.timed or self.options.jobs is None):
            argv += ["--lock", str(self._lock)]
        try:
            return run_json(argv, limit_seconds, module="benchmarks.gpu.one_row", on_line=lambda line: None)
        except CommandError as error:
            return {"error": str(error)}

    def _by_command(self, words: Sequence[str], read: Read, limit_seconds: float) -> dict[str, Any]:
        """Runs `snugfit` itself in a fresh process; its document is the row."""
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)} if self._on_cpu else {}
        with tempfile.TemporaryDirectory(prefix="snugfit-") as folder:
            where = ["--run-dir", str(Path(folder) / "run")]
            try:
                document = run_json([*words, *where], limit_seconds, on_line=lambda line: None, environment=environment)
                found = read(document)
            except (CommandError, InputError) as error:
                return {"error": str(error)}
        if self.options.jobs not in (None, 1):
            found["measured"]["step_seconds"] = None  # others ran beside it
        return {**found, **({"threads": 1} if self._on_cpu else {})}

    @property
    def _on_cpu(self) -> bool:
        return self.place.kind == "cpu"

    def _line(self, part: Part, row: dict[str, Any]) -> str:
        head = f"{part.name:9} {row['name']:66}"
        if "error" in row:
            return f"{head} FAILED: {row['error']}"
        if "left_out" in row:
            return f"{head} left out: {row['left_out']}"
        return f"{head} {part.line(row)}"
