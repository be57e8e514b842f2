"""The frontier of a plan as one figure: memory against time of the recipes that no other beats in both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from snugfit.report.figure import DASHES, FAINT, INK, clear_axes, new_figure, unit_for
from snugfit.report.words import recipe_in_words
from snugfit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from snugfit.planner.plan_result import Plan

_LINE, _PLAN = "#0072B2", "#D55E00"
_WIDE = 3.0
"""From this ratio of times on their axis is logarithmic."""


def draw_plan(plan: Plan, path: Path) -> None:
    """Draws the frontier and writes it."""
    figure = new_figure(9.5, 5.4)
    figure.set_layout_engine("constrained")
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    unit, factor = unit_for(max([plan.budget_bytes, *(point.total_bytes for point in plan.frontier)]))
    slowest = max(point.step_seconds for point in plan.frontier)
    scale, word = (1.0, "seconds") if slowest >= 1 else (1e3, "milliseconds")
    axes = figure.add_subplot()
    xs = [point.total_bytes / factor for point in plan.frontier]
    ys = [point.step_seconds * scale for point in plan.frontier]
    axes.plot(xs, ys, drawstyle="steps-post", color=_LINE, linewidth=1.5, zorder=2)
    axes.plot(xs, ys, "o", color=_LINE, markersize=5, zorder=3)
    chosen = [(x, y) for x, y, point in zip(xs, ys, plan.frontier, strict=True) if point.recipe == plan.recipe]
    axes.axvline(plan.budget_bytes / factor, color=FAINT, linestyle=DASHES, linewidth=1, zorder=1)
    axes.text(
        plan.budget_bytes / factor, 0.98, f" budget {format_bytes(plan.budget_bytes)}", color=FAINT, va="top",
        transform=axes.get_xaxis_transform(), fontsize=9,
    )  # fmt: skip
    for x, y in chosen:
        axes.plot(x, y, "o", color=_PLAN, markersize=10, zorder=4)
        axes.annotate(
            f"{format_bytes(plan.estimate.total_bytes)}, {format_seconds(plan.step_seconds)}", (x, y), xytext=(8, 8),
            textcoords="offset points", color=_PLAN, fontsize=10,
        )  # fmt: skip
    axes.set_xlim(0, None)
    if max(ys) > _WIDE * min(ys):  # one recipe that crosses the link all the time would press the others together
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(min(ys) / 1.2, None)
    else:
        axes.set_ylim(0, None)
    axes.set_xlabel(f"memory ({unit})", color=INK)
    axes.set_ylabel(f"{word} a step", color=INK)
    clear_axes(axes, along="both", without=("top", "right"))
    title = f"{plan.estimate.title} on {plan.estimate.device}: {recipe_in_words(plan.recipe)}"
    axes.set_title(title if len(title) < 110 else title[:107] + "...", loc="left", fontsize=10, color=INK)
    figure.savefig(path)
