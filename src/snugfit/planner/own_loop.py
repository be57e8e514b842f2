"""Plans for loops that keep their own forward, backward and optimizers: only what lives in the model is chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from snugfit.errors import InputError, RecipeError
from snugfit.planner.plan_result import Plan
from snugfit.techniques import LOOP_FIELDS


def without_loop(
    pins: Mapping[str, Any], forbid: str | Iterable[str] | None, settings: Mapping[str, Any]
) -> tuple[str, ...]:
    """Returns the fields that such a plan must leave alone; `RecipeError` where one of them is pinned."""
    if settings.get("gpus", 1) != 1 or settings.get("nodes", 1) != 1:
        raise InputError(
            "a plan for a loop of your own is for one GPU: how several share a batch is the loop's business."
        )
    pinned = sorted(LOOP_FIELDS & {str(name).strip().replace("-", "_") for name in pins})
    if pinned:
        problems = [f"{name} is pinned, and belongs to the loop, which is yours here. Leave it out." for name in pinned]
        raise RecipeError(problems, subject="plan for a loop of your own")
    return *([forbid] if isinstance(forbid, str) else forbid or ()), *sorted(LOOP_FIELDS)


def for_own_loop(found: Plan) -> Plan:
    """Returns a plan whose reasons say which fields are the loop's, without fallbacks."""
    theirs = dict.fromkeys(LOOP_FIELDS & found.reasons.keys(), "off: it belongs to the loop.")
    budgets = dataclasses.replace(found.budgets, may_change=False)
    return dataclasses.replace(found, reasons={**found.reasons, **theirs}, fallbacks=(), rivals=(), budgets=budgets)
