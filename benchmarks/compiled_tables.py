"""Tables of `docs/planning.md` about compiled steps: predicted beside measured here, and beside what others published."""

from __future__ import annotations

from typing import Any

from benchmarks.compiled import MODELS, combinations
from snugfit.units import GIB, MIB


def compiled_table(results: dict[str, Any]) -> str:
    """Compiled runs on this processor, and what their eager step would have taken."""
    lines = ["| model, samples | recipe | measured | predicted | eager step |", "|---|---|---|---|---|"]
    for row in results["rows"]:
        measured = row["measured_bytes"]
        recipe = ", ".join(
            str(value) if name == "compile" else f"{name} {value}" for name, value in row["recipe"].items()
        )
        lines.append(
            f"| {row['model']}, {row['samples']} | {recipe} | {measured / MIB:.2f} MiB | {row['ratio'] - 1:+.2%} | "
            f"{row['eager_bytes'] / measured - 1:+.1%} |"
        )
    machine, whole = results["machine"], results["combinations"] == len(list(combinations(list(MODELS))))
    runs = " Rows of several runs, put together." if results["assembled"] else ""
    missing = "" if whole else " The other combinations of that file have not been run."
    within = f"{results['within_tolerance']} of {results['combinations']} within {results['tolerance']:.0%}:"
    where = f"{machine['processor']}, torch {machine['torch']}, {machine['date']}; `python -m benchmarks.compiled`."
    return "\n".join([within, "", *lines, "", f"{where}{runs}{missing}"])


def published_compiled_table(results: dict[str, Any]) -> str:
    """Compiled runs that others published, and what is predicted for them."""
    lines = ["| model, samples | step | card | published | predicted |", "|---|---|---|---|---|"]
    for row in results["rows"]:
        step, published = row["recipe"].get("compile", "eager"), row["published_bytes"] / GIB
        subject = f"{row['model']}, {row['samples']}"
        lines.append(f"| {subject} | {step} | {row['device']} | {published:.2f} GiB | {row['ratio'] - 1:+.1%} |")
    source = ", ".join(dict.fromkeys(row["source"] for row in results["rows"]))
    lines += ["", f"Source: {source}; `python -m benchmarks.published_compiled`."]
    others = results.get("not_predicted", [])
    if others:
        lines += [
            "",
            f"{sum(row['rows'] for row in others)} more compiled rows with memory are at hand and not predicted:",
            "",
        ]
        lines += ["| rows | source | reason |", "|---|---|---|"]
        lines += [f"| {row['rows']} | {row['source']} | {row['reason']} |" for row in others]
    return "\n".join(lines)
