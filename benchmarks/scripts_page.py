"""The tables of docs/scripts.md, from `results/scripts.json` and `results/pasted_plans.json`."""

from __future__ import annotations

from typing import Any

from snugfit.recipe import Recipe
from snugfit.units import format_bytes


def scripts_table(results: dict[str, Any]) -> str:
    """A row a script: predicted and measured on cpu, predicted on a card."""
    lines = ["| script | predicted on cpu | measured | apart | on an rtx-4090 |", "|---|---|---|---|---|"]
    for row in results["rows"].values():
        name = f"{row['repository']} `{' '.join(filter(None, (row['script'], row['words'])))}`"
        if row.get("gpus", 1) > 1:
            name += f", the first of {row['gpus']} processes"
        card = format_bytes(row["card_bytes"]) if row["card_bytes"] else row["said"].removeprefix("snugfit: ")
        if row.get("needs_card"):
            lines.append(f"| {name} | needs a card | | | {card} |")
            continue
        if row["predicted_bytes"] is None:
            lines.append(f"| {name} | not answered: {row['said'].removeprefix('snugfit: ')} | | | |")
            continue
        apart = ""
        if row["measured_bytes"]:
            apart = f"{100 * (row['predicted_bytes'] / row['measured_bytes'] - 1):+.4f} %"
        if any(one.startswith("the steps called") for one in row["answered"] or ()):
            apart += " (its steps are as long as the assumed values make them, which the estimate says)"
        sizes = [format_bytes(row[f"{which}_bytes"] or 0) for which in ("predicted", "measured")]
        lines.append("| " + " | ".join([name, *sizes, apart, card]) + " |")
    left = sum(len(row["left_behind"]) for row in results["rows"].values())
    return "\n".join([*lines, "", f"Files left behind: {left}. {_where(results, 'scripts')}"])


def pasted_table(results: dict[str, Any]) -> str:
    """A row a script: its budget, what its plan changes, what that takes, and how its losses differ."""
    lines = [
        "| script | as it is | budget | recipe | predicted | measured | fits | losses apart |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"].values():
        name = f"{row['repository']} `{row['script']}`"
        if row["said"]:
            lines.append(f"| {name} | | | {row['said'].removeprefix('snugfit: ')} | | | | |")
            continue
        changed = Recipe.from_mapping(row["recipe"]).to_mapping(defaults=False)
        recipe = ", ".join(f"{field}={value}" for field, value in changed.items())
        kinds = ("measured_before", "budget", "predicted", "measured")
        before, budget, *both = (format_bytes(row[f"{kind}_bytes"]) for kind in kinds)
        fits = "yes" if row["measured_bytes"] <= row["budget_bytes"] else "no"
        apart = f"{furthest(row['losses_before'], row['losses_after']):.1e}"
        lines.append("| " + " | ".join([name, before, budget, recipe, *both, fits, apart]) + " |")
    return "\n".join([*lines, "", _where(results, "pasted_plans")])


def furthest(before: list[float], after: list[float]) -> float:
    """Returns the largest distance between two runs' losses, as a share of the loss where that is above 1."""
    return max(abs(one - other) / max(1.0, abs(one)) for one, other in zip(before, after, strict=True))


def _where(results: dict[str, Any], benchmark: str) -> str:
    machine = results["machine"]
    return f"{machine['processor']}, torch {machine['torch']}, {machine['date']}; `python -m benchmarks.{benchmark}`."
