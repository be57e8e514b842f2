"""Strangers: training steps of real repositories that nobody tuned anything for, adopted in at most ten lines each.

For each one the peak tensor bytes of its own plain loop are measured and predicted; then a plan of exact techniques for 60 %
of them (or the least that works) is trained, and twelve losses and all weights are held against the plain loop's, in float64
where the code can. Loops that keep their own backward and updates (`step`) are planned as such, and trained with
`snugfit.apply`. Each row has a process of its own; rows are kept as they come, so a run can be stopped and goes on where
it was.

The foreign code is not here: `--commands` prints what fetches it into a folder.

    python -m benchmarks.strangers --sources DIR [--commands] [--only PATTERN] [--failed] [--again] [--minutes N]
                                                            (writes benchmarks/results/strangers.json)
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from pathlib import Path
from typing import Any

from benchmarks.results_file import RESULTS, machine, write
from benchmarks.stranger_cases import CASES
from benchmarks.stranger_cases.sources import PACKAGES, SOURCES, commands, missing
from benchmarks.zoo import Child

LIMIT_SECONDS = {"bytes": 300.0, "plan": 900.0}
"""Longest that one row may take for each part."""
TOLERANCE = 0.02
"""How far an answer may be off."""


def made(name: str, sources: Path) -> dict[str, Any]:
    """Returns a row, made in a process of its own.

    Args:
        name: Name of its case.
        sources: The folder of the foreign code.
    """
    case = CASES[name]
    row: dict[str, Any] = {
        "name": name,
        "kind": case.kind,
        "repository": case.repository,
        "commit": SOURCES[case.repository].commit,
        "lines": case.lines,
        "torch": machine()["torch"],
        "date": datetime.date.today().isoformat(),
    }
    child = Child("benchmarks.stranger_row", str(sources))
    try:
        for kind, limit in LIMIT_SECONDS.items():
            if "ratio" in row or kind == "bytes":
                row.update(child.ask(kind, name, limit))
    finally:
        child.close()
    return row


def is_answered(row: dict[str, Any]) -> bool:
    """Whether a stranger got what the README promises: bytes, and a plan that trains."""
    return "loss_difference" in row


def is_as_plain(row: dict[str, Any]) -> bool:
    """Whether a plan's losses and weights are the plain loop's."""
    return max(row["loss_difference"], row["weight_difference"]) <= row["tolerance"]


def is_right(row: dict[str, Any]) -> bool:
    """Whether all that was answered is true: bytes of both runs, and losses and weights where the plan is called exact."""
    if row["fidelity"] == "exact" and not is_as_plain(row):
        return False
    off = row["ratio"] - 1, row["plan_predicted_bytes"] / row["plan_measured_bytes"] - 1
    return max(map(abs, off)) <= TOLERANCE


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns what the rows come to.

    Args:
        rows: All rows.
    """
    answered = [row for row in rows if is_answered(row)]
    return {
        "strangers": len(rows),
        "repositories": len({row["repository"] for row in rows}),
        "answered": len(answered),
        "answered_repositories": len({row["repository"] for row in answered}),
        "right": sum(map(is_right, answered)),
        "wrong": [row["name"] for row in answered if not is_right(row)],
        "not_answered": [row["name"] for row in rows if not is_answered(row)],
        "estimates": sum("ratio" in row for row in rows),
        "estimates_to_the_byte": sum(row.get("predicted_bytes") == row.get("measured_bytes") for row in answered),
        "plans_as_plain": sum(map(is_as_plain, answered)),
        "plans_in_budget": sum(row["plan_measured_bytes"] <= row["budget_bytes"] for row in answered),
    }


def line(row: dict[str, Any]) -> str:
    """Returns a row in words.

    Args:
        row: The row.
    """
    words = [f"{row['name']:24s}"]
    if "ratio" in row:
        words.append(f"{row['measured_bytes']:>12,} bytes {row['ratio'] - 1:+.3%}")
    for name in ("failed", "refused", "plan_refused", "training_refused"):
        if name in row:
            words.append(f"{name.replace('_', ' ').upper()}: {row[name]}")
    if "plan_recipe" in row:
        words.append(", ".join(f"{name}={value}" for name, value in row["plan_recipe"].items()) or "plain")
    if "loss_difference" in row:
        share = row["plan_measured_bytes"] / row["measured_bytes"]
        off = row["plan_predicted_bytes"] / row["plan_measured_bytes"] - 1
        words.append(f"{share:.0%} of plain ({off:+.3%}), losses {row['loss_difference']:.0e}")
        words.append(f"weights {row['weight_difference']:.0e} in {row['compared_in']}")
    return "  ".join(words)


def save(kept: dict[str, dict[str, Any]]) -> Path:
    """Writes the results.

    Args:
        kept: Rows by name.
    """
    rows = [kept[name] for name in CASES if name in kept]
    return write("strangers", {**summary(rows), "packages": list(PACKAGES), "rows": rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sources", type=Path, required=True, metavar="DIR", help="where the foreign code lies")
    parser.add_argument("--commands", action="store_true", help="print what fetches the foreign code, and do no more")
    parser.add_argument("--only", default="", metavar="PATTERN", help="rows with this in their name")
    parser.add_argument("--failed", action="store_true", help="rows that are there and not right, too")
    parser.add_argument("--again", action="store_true", help="all rows that are there, too")
    parser.add_argument("--minutes", type=float, metavar="N", help="begin no row after this time")
    args = parser.parse_args()
    sources = args.sources.resolve()
    if args.commands:
        print("\n".join(commands(args.sources)))
        return
    absent = missing(sources)
    if absent:
        print(f"not in {args.sources}: {', '.join(absent)}; --commands says how they get there", flush=True)
    file = RESULTS / "strangers.json"
    before = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    kept = {row["name"]: row for row in before if row["name"] in CASES}
    started = time.monotonic()
    for name, case in CASES.items():
        row = kept.get(name)
        there = row is not None and not (args.failed and not (is_answered(row) and is_right(row)))
        late = args.minutes is not None and time.monotonic() - started > 60 * args.minutes
        if args.only not in name or late or case.repository in absent or (there and not args.again):
            continue
        kept[name] = made(name, sources)
        print(line(kept[name]), flush=True)
        save(kept)
    found = summary(list(kept.values()))
    print(
        f"{found['answered']} of {found['strangers']} answered ({found['answered_repositories']} of "
        f"{found['repositories']} repositories), {found['right']} of them right; {found['plans_as_plain']} of "
        f"{found['answered']} plans with the plain loop's losses and weights; {file}"
    )


if __name__ == "__main__":
    main()
