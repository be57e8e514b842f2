"""The table of docs/scripts.md, from `results/scripts.json`."""

from __future__ import annotations

from typing import Any

from snugfit.units import format_bytes


def scripts_table(results: dict[str, Any]) -> str:
    """A row a script: predicted and measured on cpu, predicted on a card."""
    lines = ["| script | predicted on cpu | measured | apart | on an rtx-4090 |", "|---|---|---|---|---|"]
    for row in results["rows"].values():
        name = f"{row['repository']} `{' '.join(filter(None, (row['script'], row['words'])))}`"
        if row["predicted_bytes"] is None:
            lines.append(f"| {name} | not answered: {row['said'].removeprefix('snugfit: ')} | | | |")
            continue
        apart, card = "", format_bytes(row["card_bytes"]) if row["card_bytes"] else row["said"]
        if row["measured_bytes"]:
            apart = f"{100 * (row['predicted_bytes'] / row['measured_bytes'] - 1):+.4f} %"
        sizes = [format_bytes(row[f"{which}_bytes"] or 0) for which in ("predicted", "measured")]
        lines.append("| " + " | ".join([name, *sizes, apart, card]) + " |")
    machine = results["machine"]
    where = f"{machine['processor']}, torch {machine['torch']}, {machine['date']}; `python -m benchmarks.scripts`."
    left = sum(len(row["left_behind"]) for row in results["rows"].values())
    return "\n".join([*lines, "", f"Files left behind: {left}. {where}"])
