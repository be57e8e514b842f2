"""The page of the zoo, from its results."""

from __future__ import annotations

from typing import Any

from benchmarks.zoo import LEAST, LOSS_TOLERANCE_TEXT, TOLERANCE
from snugfit.units import format_bytes

_HEAD = """# The zoo

Models that nothing was tuned for, trained for three steps on a CPU and predicted from the same description: families of
timm, architectures of transformers, torchvision's models for classes, segments, boxes and video, and pieces of user code.
Made from `benchmarks/results/zoo.json` by `make docs`; `python -m benchmarks.zoo` measures again.
"""


def zoo_page(results: dict[str, Any]) -> str:
    """Returns the page.

    Args:
        results: Content of `zoo.json`.
    """
    machine = results["machine"]
    libraries = ", ".join(f"{name} {version}" for name, version in results["libraries"].items())
    parts = [
        _HEAD,
        f"{results['answered']} of {results['models']} models are answered, {results['within_tolerance']} of them within "
        f"{TOLERANCE:.0%} of what was measured and {results['exact']} to the byte. {_too_low(results)} Of "
        f"{results['plans']} plans for 70 % of plain training's memory (or for the smallest budget that works), "
        f"{results['plans_with_equal_losses']} gave plain training's losses within {LOSS_TOLERANCE_TEXT} and "
        f"{results['plans_in_budget']} stayed within their budget.\n\n"
        f"Measured {machine['date']} on a CPU ({machine['processor']}), torch {machine['torch']}; {libraries}.\n",
        "## By family\n",
        _families(results["rows"]),
        "\n## Model by model\n",
        _models(results["rows"]),
        "\n## Not answered\n",
        _unanswered(results["rows"]),
    ]
    return "\n".join(parts)


def _too_low(results: dict[str, Any]) -> str:
    if not results["too_low"]:
        return f"None is more than {-LEAST:.0%} under."
    return f"More than {-LEAST:.0%} under: {', '.join(results['too_low'])}."


def _families(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| family | models | answered | within 1 % | to the byte | worst under |",
        "|---|---|---|---|---|---|",
    ]
    for family in dict.fromkeys(row.get("family", "") for row in rows):
        own = [row for row in rows if row.get("family", "") == family]
        answered = [row for row in own if "ratio" in row]
        within = sum(abs(row["ratio"] - 1) <= TOLERANCE for row in answered)
        exact = sum(row["predicted_bytes"] == row["measured_bytes"] for row in answered)
        lowest = min(answered, key=lambda row: row["ratio"], default=None)
        under = (
            ""
            if lowest is None or lowest["ratio"] >= 1
            else f"{off(lowest['predicted_bytes'], lowest['measured_bytes'])} ({lowest['name']})"
        )
        lines.append(
            f"| {family or 'not built'} | {len(own)} | {len(answered)} | {within} | {exact} | {under or 'none'} |"
        )
    return "\n".join(lines)


def _models(rows: list[dict[str, Any]]) -> str:
    lines = ["| model | measured | predicted | plan | of plain | losses within |", "|---|---|---|---|---|---|"]
    for row in rows:
        if "ratio" not in row:
            continue
        plan = ["", "", ""]
        if "loss_difference" in row:
            recipe = ", ".join(f"{name}={value}" for name, value in row["plan_recipe"].items())
            share = f"{row['plan_measured_bytes'] / row['measured_bytes']:.0%}"
            plan = [recipe or "plain", share, f"{row['loss_difference']:.0e}"]
        predicted = off(row["predicted_bytes"], row["measured_bytes"])
        cells = [row["name"], format_bytes(row["measured_bytes"]), predicted, *plan]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def off(predicted_bytes: int, measured_bytes: int) -> str:
    """Returns how far a prediction is off, in words.

    Args:
        predicted_bytes: What was predicted.
        measured_bytes: What was measured.
    """
    percent = 100 * (predicted_bytes / measured_bytes - 1)
    if predicted_bytes == measured_bytes:
        return "exact"
    return f"{percent:+.1f} %" if abs(percent) >= 0.05 else f"{percent:+.3f} %"


def _unanswered(rows: list[dict[str, Any]]) -> str:
    lines = [f"- {row['name']}: {row.get('refused') or row.get('failed')}" for row in rows if "ratio" not in row]
    return "\n".join(lines) + "\n" if lines else "None.\n"
