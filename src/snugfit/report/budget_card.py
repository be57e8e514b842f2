"""What an earlier plan answers for another budget, as text for a console; what was simulated and what was not is said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from snugfit.report.console import card
from snugfit.report.words import recipe_in_words
from snugfit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from snugfit.planner.budgets import BudgetAnswer


def budget_card(answer: BudgetAnswer) -> str:
    """Returns the card of what a plan answers for another budget."""
    title = f"{answer.title} on {answer.device} within {format_bytes(answer.budget_bytes)}, from an earlier plan"
    return card(title, _facts_of_budget(answer))


def _facts_of_budget(answer: BudgetAnswer) -> Iterator[tuple[str, str]]:
    needs = f"needs {format_bytes(answer.need_bytes)}, reserves {format_bytes(answer.total_bytes)} where memory is not short"
    slower = (
        "the fastest that was simulated"
        if answer.slowdown < 1.0005
        else f"{answer.slowdown:.3g} times the fastest that was simulated"
    )
    yield "batch", answer.batch_shape
    yield "recipe", recipe_in_words(answer.recipe)
    yield "fidelity", str(answer.fidelity)
    yield "memory", f"{needs} (simulated)"
    yield "margin", f"{format_bytes(answer.margin_bytes)} stay free"
    yield "host memory", format_bytes(answer.host_bytes) if answer.host_bytes else ""
    yield "time", f"{format_seconds(answer.step_seconds)} a step (simulated), {slower}"
    yield "fallbacks", "; ".join(map(recipe_in_words, answer.fallbacks))
    if answer.faster is not None:
        yield (
            "may be faster",
            f"{recipe_in_words(answer.faster.recipe)}: {format_seconds(answer.faster.step_seconds)} a step, needs "
            f"{format_bytes(answer.faster.need_bytes)} (composed, not simulated)",
        )
