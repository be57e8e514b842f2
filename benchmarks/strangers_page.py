"""The page of the strangers, from their results."""

from __future__ import annotations

from typing import Any

from benchmarks.strangers import TOLERANCE, is_answered, is_right
from benchmarks.zoo_page import off
from snugfit.units import format_bytes

_HEAD = """# Strangers

Training steps of real repositories that nothing was tuned for, each adopted in at most ten lines
(`benchmarks/stranger_cases/`): trained on a CPU by a plain loop of torch alone, predicted, planned for 60 % of the plain
loop's memory (or the smallest budget that works) with exact techniques only, and trained by that plan. Twelve losses and
all weights are held against the plain loop's: in float64 within 1e-9, or, where the code has float32 written into it, by
SGD in float32 within 1e-4. Loops that keep their own backward and updates (games of two networks, rewards, MAML, LBFGS) are
planned as they are written, their activations on the host, and trained behind `snugfit.apply`. Shapes are small. A sparse
matrix in a batch is counted as a dense one, and that is said.

No foreign code is in this repository. `python -m benchmarks.strangers --sources DIR --commands` prints what fetches it, and
without `--commands` measures again. Made from `benchmarks/results/strangers.json` by `make docs`.
"""


def strangers_page(results: dict[str, Any]) -> str:
    """Returns the page.

    Args:
        results: Content of `strangers.json`.
    """
    machine, rows = results["machine"], results["rows"]
    answered = [row for row in rows if is_answered(row)]
    parts = [
        _HEAD,
        f"{results['answered']} of {results['strangers']} training steps are answered, of "
        f"{results['answered_repositories']} of {results['repositories']} repositories; for {results['right']} of them all "
        f"bytes, of the plain loop and of the plan, are within {TOLERANCE:.0%} of what was measured, and what is called "
        f"exact is the plain loop's update. "
        f"{results['plans_as_plain']} of these plans have the plain loop's losses and weights, and "
        f"{results['plans_in_budget']} stayed within their budget.\n\n"
        f"Measured until {machine['date']} on a CPU ({machine['processor']}), torch {machine['torch']}.\n",
        "## Row by row\n",
        "`update`: the largest difference of a loss or a weight after twelve steps, as a part of it.\n",
        _table(answered),
        "\n## Answered wrongly\n",
        _list(f"{row['name']}: {_wrong(row)}" for row in answered if not is_right(row)),
        "\n## Not answered\n",
        _list(f"{row['name']} ({row['repository']}): {_why(row)}" for row in rows if not is_answered(row)),
        "\n## What was assumed\n",
        "Of all: losses and gradients are finite. Besides:\n",
        _list(f"{row['name']}: {'; '.join(row['answered'])}" for row in answered if row["answered"]),
        "\n## Commits\n",
        _list(f"{name} at `{commit[:12]}`" for name, commit in {r["repository"]: r["commit"] for r in rows}.items()),
    ]
    return "\n".join(parts)


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| name | repository | about | lines | plain loop | predicted | plan | of plain | predicted | update |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        recipe = ", ".join(f"{name}={value}" for name, value in row["plan_recipe"].items()) or "plain"
        share = f"{row['plan_measured_bytes'] / row['measured_bytes']:.0%}"
        update = f"{max(row['loss_difference'], row['weight_difference']):.0e}, {row['compared_in']}"
        planned = off(row["plan_predicted_bytes"], row["plan_measured_bytes"])
        plan = [f"own loop: {recipe}" if row["own_loop"] else recipe, share, planned, update]
        predicted = off(row["predicted_bytes"], row["measured_bytes"])
        cells = [row["name"], row["repository"], row["kind"], str(row["lines"]), format_bytes(row["measured_bytes"])]
        lines.append(f"| {' | '.join([*cells, predicted, *plan])} |")
    return "\n".join(lines)


def _wrong(row: dict[str, Any]) -> str:
    return (
        f"predicted {off(row['predicted_bytes'], row['measured_bytes'])}; its plan "
        f"{off(row['plan_predicted_bytes'], row['plan_measured_bytes'])}; losses off by {row['loss_difference']:.0e}, "
        f"weights by {row['weight_difference']:.0e}"
    )


def _why(row: dict[str, Any]) -> str:
    names = ("failed", "refused", "plan_refused", "training_refused")
    return "; ".join(f"{name.replace('_', ' ')}: {row[name]}" for name in names if name in row) or "its run was ended"


def _list(lines: Any) -> str:
    return "\n".join(f"- {line}" for line in lines) + "\n" if (lines := list(lines)) else "None.\n"
