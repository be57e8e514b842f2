"""A plan for a script as text for a console: the plan's card, and the lines to paste."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snugfit.report.console import table
from snugfit.report.plan_card import plan_card
from snugfit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from snugfit.planner.script_plan_result import ScriptPlan


def script_plan_card(plan: ScriptPlan) -> str:
    """Returns the whole card, the lines last."""
    as_it_is = f"{format_bytes(plan.total_bytes)} and {format_seconds(plan.step_seconds)} a step"
    parts = [plan_card(plan.plan), "\n".join(["The script as it is", *table([("-", f"{as_it_is}.")])])]
    loose = [one.text for one in plan.lines if one.file is None]
    if plan.notes:
        parts.append("\n".join(["No place was found", *table([("-", note) for note in plan.notes]), "", *loose]))
    if plan.diff:
        how = "into the cells by hand" if plan.script.endswith(".ipynb") else "patch -p0; -o FILE writes it"
        parts.append(f"To paste ({how})\n\n{plan.diff}".rstrip("\n"))
    elif not loose:
        parts.append("Nothing to paste: the script fits as it is, and nothing makes it faster.")
    return "\n\n".join(parts)
