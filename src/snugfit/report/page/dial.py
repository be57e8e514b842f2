"""The dial: what a plan answers at every position of a slider over budgets. The answers are those of `Budgets.at`."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from snugfit.errors import DoesNotFitError
from snugfit.recipe import Recipe
from snugfit.report.words import as_options, recipe_in_words
from snugfit.units import MIB, format_bytes, format_seconds
from snugfit.workload import CUSTOM_OPTIMIZER

if TYPE_CHECKING:
    from snugfit.planner.budgets import BudgetAnswer, BudgetPoint, Budgets

_POSITIONS = 200
"""About how many budgets the slider has, beside those at which the recipe changes."""


def dial(budgets: Budgets, start_bytes: int, source: str) -> dict[str, Any]:
    """Returns all positions of the slider and the answers they have.

    `start_bytes`: the budget at which it starts: the plan's.
    `source`: the plan's file, for the command to copy; empty where there is none.
    """
    positions: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    faster: list[dict[str, Any]] = []
    earlier = f"snugfit plan --from {shlex.quote(source)}"
    known: dict[Recipe, int] = {}
    guesses: dict[Recipe, int] = {}
    for size in _sizes(budgets, start_bytes):
        try:
            found = budgets.at(size)
        except DoesNotFitError:
            positions.append({"budget_bytes": size, "budget": format_bytes(size), "answer": None, "faster": None})
            continue
        if found.recipe not in known:
            known[found.recipe] = len(answers)
            answers.append(_answer(found, budgets, size))
        if found.faster is not None and found.faster.recipe not in guesses:
            guesses[found.faster.recipe] = len(faster)
            faster.append(_guess(found.faster))
        positions.append(
            {
                "budget_bytes": size,
                "budget": format_bytes(size),
                "command": f"{earlier} --budget {size // MIB}MiB -o recipe.yaml" if source else "",
                "margin": format_bytes(found.margin_bytes),
                "answer": known[found.recipe],
                "faster": None if found.faster is None else guesses[found.faster.recipe],
            }
        )
    for less, more in itertools.pairwise(answers):
        less["more"] = f"from {more['from']} on: {_change(less, more)}"
        more["less"] = f"below {more['from']}: {_change(more, less)}"
    starts = [abs(one["budget_bytes"] - start_bytes) for one in positions]
    return {
        "end": f"It ends with all that {budgets.device} has." if budgets.card_bytes is not None else "",
        "context": format_bytes(budgets.context_bytes) if budgets.context_bytes else "",
        "start": starts.index(min(starts)),
        "positions": positions,
        "answers": [{name: value for name, value in one.items() if name != "fields"} for one in answers],
        "composed": faster,
        "too_little": f"Nothing that was simulated fits; the least that does is {answers[0]['from']}."
        if answers
        else "",
    }


def _sizes(budgets: Budgets, start_bytes: int) -> list[int]:
    """Budgets of the slider, in whole MiB: where an answer changes, and even steps to a little beyond; at last the card."""
    changes = {budgets.budget_for(point.from_bytes) for point in (*budgets.points, *budgets.composed)}
    least, beyond = min(changes) * 3 // 4, max(*changes, start_bytes) * 5 // 4
    step = MIB
    while beyond > step * _POSITIONS * 5 // 4:
        step *= 2
    even = range(max(least // step, 1) * step, beyond + step, step)
    sizes = {*even, *changes, max(start_bytes // MIB, 1) * MIB}
    card = budgets.card_bytes
    return sorted(sizes if card is None else {*(size for size in sizes if size < card), card})


def _answer(found: BudgetAnswer, budgets: Budgets, size: int) -> dict[str, Any]:
    changed = found.recipe.to_mapping(defaults=False)
    workload = budgets.workload
    settings = {
        **changed,
        **workload.to_mapping(defaults=False),
        "optimizer": found.recipe.optimizer or workload.optimizer,
    }
    settings = {name: value for name, value in settings.items() if name not in _NOT_TYPED}
    words = ["snugfit", "train", found.title, *budgets.options, "--data", "DATA", *as_options(settings)]
    fields = ", ".join(f"{name}={_literal(value)}" for name, value in changed.items())
    python = f"snugfit.Recipe({fields})"
    optimizer = "optimizer" if workload.optimizer == CUSTOM_OPTIMIZER else repr(workload.optimizer)
    return {
        "fields": found.recipe.to_mapping(),
        "recipe": recipe_in_words(found.recipe),
        "fidelity": str(found.fidelity),
        "from_bytes": size,
        "from": format_bytes(size),
        "need_bytes": found.need_bytes,
        "need": format_bytes(found.need_bytes),
        "total_bytes": found.total_bytes,
        "total": format_bytes(found.total_bytes),
        "host": format_bytes(found.host_bytes) if found.host_bytes else "",
        "step_seconds": found.step_seconds,
        "step": format_seconds(found.step_seconds),
        "slowdown": "the fastest that was simulated"
        if found.slowdown < 1.0005
        else f"{found.slowdown:.3g} times the fastest that was simulated",
        "train": shlex.join(words) if _NAMED.match(found.title) and "--frames" not in budgets.options else "",
        "python": f"trainer = snugfit.prepare(model, {python}, loss=loss_fn, optimizer={optimizer})"
        if budgets.may_change
        else f"applied = snugfit.apply(model, {python})",
        "less": "",
        "more": "",
    }


_NOT_TYPED = ("batch_norm", "dropout", "half_weights", "coupled_samples", "keep_gradients", "keep_outputs")
"""Fields of a workload that are found out, or for Python alone."""
_NAMED = re.compile(r"(torchvision|timm|hf):|.*\.py:\w+$")
"""Titles that are names which `snugfit train` takes."""


def _literal(value: Any) -> str:
    return repr(tuple(value)) if isinstance(value, list) else repr(value)


def _guess(one: BudgetPoint) -> dict[str, Any]:
    return {
        "recipe": recipe_in_words(one.recipe),
        "need_bytes": one.need_bytes,
        "need": format_bytes(one.need_bytes),
        "step_seconds": one.step_seconds,
        "step": format_seconds(one.step_seconds),
    }


def _change(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What differs between two answers, in words."""
    fields = [
        f"{name} {before['fields'][name]} \N{RIGHTWARDS ARROW} {value}"
        for name, value in after["fields"].items()
        if value != before["fields"][name]
    ]
    return f"a step takes {after['step']} ({', '.join(fields)})"
