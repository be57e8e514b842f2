"""A plan as text for a console: recipe, prediction, what is on and off and why, the frontier."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from snugfit.recipe import Recipe
from snugfit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from snugfit.planner.plan_result import Plan

_WIDTH = 118
_QUIET = (
    "workers", "pin_memory", "prefetch", "compile_memory_budget", "adapter_rank", "adapter_alpha", "adapter_dropout",
    "adapter_targets", "adapter_head", "double_quantize", "init", "accumulate_dtype", "stochastic_rounding",
)  # fmt: skip
"""Fields that the card only names when they are on; the JSON has all."""
_NAMES_SHOWN = 3


def plan_card(plan: Plan) -> str:
    """Returns the whole card.

    Args:
        plan: The plan.

    Returns:
        Lines of text, the last without a line break.
    """
    parts = [_heading(plan), _reasons(plan), _frontier(plan), _neighbours(plan)]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _heading(plan: Plan) -> list[str]:
    rows = [(name, text) for name, text in _facts(plan) if text]
    width = max(len(name) for name, _ in rows)
    lines = [f"{plan.estimate.title} on {plan.estimate.device} within {format_bytes(plan.budget_bytes)}"]
    for name, text in rows:
        lines += _wrapped(f"  {name:<{width}}  ", text)
    return lines


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    estimate = plan.estimate
    yield "batch", estimate.batch_shape
    for name, size in plan.maximized.items():
        yield "largest", f"{name} {size}"
    yield "recipe", short_recipe(plan.recipe)
    yield "fidelity", str(plan.fidelity)
    headroom = estimate.devices[0].headroom_bytes
    room = "" if headroom is None else f"; {format_bytes(headroom)} of the budget are left"
    yield "memory", f"{format_bytes(estimate.total_bytes)} where memory is not short{room}"
    processor = getattr(estimate, "processor", None)  # what a prediction for cpu holds for
    yield "holds for", f"{processor}" if processor else ""
    yield "margin", f"{format_bytes(plan.margin_bytes)} stay free ({plan.margin_source})"
    if estimate.peak_reserved_bytes is not None:
        yield (
            "CUDA context",
            f"{format_bytes(estimate.context_bytes)}, taken off the budget"
            if estimate.context_bytes
            else "unknown for this card and counted 0: leave room for it, or measure it (snugfit profile)"
            if estimate.context_bytes is None
            else "",
        )
    limit = "" if plan.host_budget_bytes is None else f" of {format_bytes(plan.host_budget_bytes)}"
    yield "host memory", f"{format_bytes(estimate.host_bytes)}{limit}" if estimate.host_bytes else ""
    slower = (
        "the fastest there is" if plan.slowdown < 1.0005 else f"{plan.slowdown:.3g} times the fastest without a budget"
    )
    yield "time", f"{format_seconds(plan.step_seconds)} a step, {slower}"
    yield "simulated", f"{plan.simulated} recipes"


def short_recipe(recipe: Recipe) -> str:
    """Returns what a recipe changes, long lists of names shortened.

    Args:
        recipe: The recipe.

    Returns:
        `field=value` of every field that is not plain.
    """
    changed = recipe.to_mapping(defaults=False)
    return ", ".join(f"{name}={_short(value)}" for name, value in changed.items()) or "plain"


def _short(value: Any) -> str:
    if isinstance(value, list):
        if len(value) > _NAMES_SHOWN:
            return f"{value[0]},... ({len(value)} blocks)"
        return ",".join(map(str, value))
    return str(value)


def _reasons(plan: Plan) -> list[str]:
    plain = Recipe()
    shown = {
        name: text
        for name, text in plan.reasons.items()
        if name not in _QUIET or getattr(plan.recipe, name) != getattr(plain, name)
    }
    width = max(len(name) for name in shown)
    lines = ["Why"]
    for name, text in shown.items():
        lines += _wrapped(f"  {name:<{width}}  ", text)
    return lines


def _frontier(plan: Plan) -> list[str]:
    rows = []
    for point in plan.frontier:
        mark = "*" if point.recipe == plan.recipe else " "
        rows.append(
            (mark, format_bytes(point.total_bytes), format_seconds(point.step_seconds), short_recipe(point.recipe))
        )
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["Memory against time, of the recipes that were simulated (* this plan)"]
    for mark, memory, seconds, recipe in rows:
        lines += _wrapped(f"  {mark} {memory:>{widths[1]}}  {seconds:>{widths[2]}}  ", recipe)
    return lines


def _neighbours(plan: Plan) -> list[str]:
    lines = ["With another budget"]
    for text in plan.neighbours:
        lines += _wrapped("  - ", f"{text}.")
    return lines


def _wrapped(start: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
