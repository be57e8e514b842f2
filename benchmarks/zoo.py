"""The zoo: more than 120 models that nobody tuned anything for, each trained for real on the CPU and predicted.

For each model the peak tensor bytes of three steps are measured and predicted; then a plan of exact techniques for 70 % of
them is trained, and its losses compared with plain training's. Rows are kept as they come, so a run can be stopped and goes
on where it was; one that takes too long, or brings its process down, does not stop the others.

    python -m benchmarks.zoo [--only PATTERN] [--minutes N] [--again] [--without-plans]
                                                            (writes benchmarks/results/zoo.json)
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import queue
import subprocess
import sys
import threading
import time
from typing import Any

from benchmarks.results_file import RESULTS, machine, write

LIMIT_SECONDS = {"bytes": 600.0, "plan": 1200.0}
"""Longest that one model may take for each part: only what hangs is ended, on a busy machine too."""
DONE = {"bytes": {"ratio"}, "plan": {"loss_difference", "plan_refused"}}
"""What a row has when a part of it is there; what failed is tried again."""
TOLERANCE, LEAST = 0.01, -0.02
"""How far an answer may be off, and how far under no answer may be."""
LOSS_TOLERANCE_TEXT = "1e-5"
LIBRARIES = ("timm", "torchvision", "transformers")


class Child:
    """A process that makes rows, started anew after one that had to be ended."""

    def __init__(self, *words: str) -> None:
        """Starts nothing yet.

        Args:
            *words: What follows `python -m`; none: the zoo's rows.
        """
        self._words = words or ("benchmarks.zoo_row",)
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def ask(self, kind: str, name: str, limit_seconds: float) -> dict[str, Any]:
        """Returns a part of a row.

        Args:
            kind: bytes or plan.
            name: Name of the model.
            limit_seconds: After this the process is ended.
        """
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(f"{kind} {name}\n")
        self._process.stdin.flush()
        try:
            answer = self._answers.get(timeout=limit_seconds)
        except queue.Empty:
            self.close()
            return {"name": name, "failed": f"took longer than {limit_seconds:.0f} s"}
        if not answer:
            code = self._process.wait()
            self._process = None
            return {"name": name, "failed": f"its process ended with status {code}"}
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        """Ends the process, and with it the workers that it started."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()  # one that is idle ends its workers and itself
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", *self._words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answers = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self._process, self._answers), daemon=True).start()

    @staticmethod
    def _read(process: subprocess.Popen[str], answers: queue.SimpleQueue[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            answers.put(line)
        answers.put("")


def versions() -> dict[str, str]:
    """Returns the versions of the libraries whose models are in the zoo."""
    return {name: importlib.metadata.version(name) for name in LIBRARIES}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns what the rows come to.

    Args:
        rows: All rows.
    """
    answered = [row for row in rows if "ratio" in row]
    within = [row for row in answered if abs(row["ratio"] - 1) <= TOLERANCE]
    plans = [row for row in rows if "loss_difference" in row]
    lowest = min(answered, key=lambda row: row["ratio"], default=None)
    return {
        "models": len(rows),
        "answered": len(answered),
        "within_tolerance": len(within),
        "exact": sum(row["predicted_bytes"] == row["measured_bytes"] for row in answered),
        "too_low": [row["name"] for row in answered if row["ratio"] - 1 < LEAST],
        "lowest": None if lowest is None else {"name": lowest["name"], "ratio": lowest["ratio"]},
        "plans": len(plans),
        "plans_with_equal_losses": sum(row["loss_difference"] <= row["loss_tolerance"] for row in plans),
        "plans_in_budget": sum(row["plan_measured_bytes"] <= row["budget_bytes"] for row in plans),
    }


def run(names: list[str], *, minutes: float | None, again: bool, plans: bool, kept: dict[str, dict[str, Any]]) -> None:
    """Fills in what is missing, and writes the results after each row.

    Args:
        names: Models, in order.
        minutes: Time after which no row begins; None: no limit.
        again: Whether rows that are there are made again.
        plans: Whether plans are made.
        kept: Rows that are there, by name; changed.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    child = Child()
    kinds = ("bytes", "plan") if plans else ("bytes",)
    try:
        for kind in kinds:
            for name in names:
                row = kept.setdefault(name, {"name": name})
                if (not again and DONE[kind] & row.keys()) or (kind == "plan" and "ratio" not in row):
                    continue
                limit = LIMIT_SECONDS[kind]
                if deadline is not None and time.monotonic() > deadline:
                    return
                found = child.ask(kind, name, limit)
                if kind == "bytes":
                    row.clear()
                for name in ("plan_failed", "plan_refused"):  # of an earlier plan
                    row.pop(name, None)
                if kind == "plan" and "failed" in found:
                    found["plan_failed"] = found.pop("failed")
                row.update({f"{kind}_seconds": limit, **found})
                print(line(kind, row), flush=True)
                save(kept)
    finally:
        child.close()


def save(kept: dict[str, dict[str, Any]]) -> None:
    """Writes the results.

    Args:
        kept: Rows by name.
    """
    rows = [kept[name] for name in sorted(kept) if len(kept[name]) > 1]
    write("zoo", {"libraries": versions(), **summary(rows), "rows": rows})


def line(kind: str, row: dict[str, Any]) -> str:
    """Returns a row in words.

    Args:
        kind: Its part that is new.
        row: The row.
    """
    head = f"{row['name']:36s} {row[f'{kind}_seconds']:5.1f} s "
    for name in ("failed", "refused") if kind == "bytes" else ("plan_failed", "plan_refused"):
        if name in row:
            return f"{head} {name.replace('_', ' ').upper()}: {row[name]}"
    if kind == "bytes":
        off = f"{row['ratio'] - 1:+.3%}"
        return f"{head} predicted {row['predicted_bytes']:>12,}  measured {row['measured_bytes']:>12,}  {off}"
    recipe = ", ".join(f"{name}={value}" for name, value in row["plan_recipe"].items())
    share = row["plan_measured_bytes"] / row["measured_bytes"]
    return f"{head} plan {share:.0%} of plain, losses within {row['loss_difference']:.1e}: {recipe or 'plain'}"


def main() -> None:
    from benchmarks.zoo_row import SUBJECTS

    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", default="", metavar="PATTERN", help="models with this in their name")
    parser.add_argument("--minutes", type=float, metavar="N", help="begin no row after this time")
    parser.add_argument("--again", action="store_true", help="also rows that are there")
    parser.add_argument("--without-plans", action="store_true", help="measure and predict plain training only")
    args = parser.parse_args()
    file = RESULTS / "zoo.json"
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    same = before.get("libraries") == versions() and before["machine"]["torch"] == machine()["torch"]
    kept = {row["name"]: row for row in before.get("rows", ()) if row["name"] in SUBJECTS} if same else {}
    names = [name for name in SUBJECTS if args.only in name]
    run(names, minutes=args.minutes, again=args.again, plans=not args.without_plans, kept=kept)
    found = summary(list(kept.values()))
    print(
        f"{found['answered']} of {found['models']} answered, {found['within_tolerance']} within {TOLERANCE:.0%}, "
        f"{found['exact']} to the byte; lowest {found['lowest']}; {found['plans_with_equal_losses']} of {found['plans']} "
        f"plans with plain training's losses, {found['plans_in_budget']} within their budget; {file}"
    )


if __name__ == "__main__":
    main()
