"""The recipe of a run, and what a plan adds to it. Imports no torch."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from snugfit.device_kinds import limited
from snugfit.errors import InputError, in_words, note
from snugfit.fidelity import Fidelity
from snugfit.fields import as_typed
from snugfit.json_files import json_text
from snugfit.planner.rivals import Rival
from snugfit.recipe import Recipe
from snugfit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import torch

    from snugfit.planner.plan_result import Plan
    from snugfit.simulator.prediction import Estimate


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The recipe of a run, and what a plan adds to it."""

    recipe: Recipe
    """How the step is held in memory."""
    fallbacks: tuple[Recipe, ...] = ()
    """Recipes to go on with where memory runs out."""
    predicted: Mapping[str, Any] | None = None
    """What the plan promises, under the names of what is measured."""
    plan: str | None = None
    """Text of `plan.json`."""
    fidelity: Fidelity | None = None
    """What the plan promises about the update."""
    rivals: tuple[Rival, ...] = ()
    """Recipes that the first steps find out about, whether one of them is faster."""
    tuned: Mapping[str, Any] | None = None
    """What was found about that before the run was stopped; None: nothing yet."""
    traits: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    """What the plan has found out about model and loss."""

    def limited(self, device: torch.device) -> contextlib.AbstractContextManager[None]:
        """Context in which a card lets the process reserve no more than the budget; a CPU has no such limit."""
        if self.budget_bytes is None:
            return contextlib.nullcontext()
        assert self.predicted is not None
        return limited(device, self.budget_bytes - (self.predicted["context_bytes"] or 0))

    @property
    def to_be_tuned(self) -> bool:
        """Whether the first steps are to time the rivals; not where an earlier part of the run has done so."""
        return bool(self.rivals) and self.tuned is None

    @property
    def step_seconds(self) -> float:
        """Seconds of a step that the plan promises."""
        assert self.predicted is not None
        return float(self.predicted["step_seconds"])

    def of_all_tried(self, tuning: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Returns what was promised for the recipes that the run has gone by: the peaks of the largest, the kept one's time.

        Args:
            tuning: What `Tuning.to_mapping` says; None: only the plan's recipe.
        """
        if self.predicted is None:
            return None
        promised = dict(self.predicted)
        for one in () if tuning is None else tuning["tried"]:
            rival = next((rival for rival in self.rivals if rival.recipe == Recipe.from_mapping(one["recipe"])), None)
            if rival is None:
                continue
            peaks = {
                "peak_tensor_bytes": rival.peak_allocated_bytes,
                "peak_allocated_bytes": rival.peak_allocated_bytes,
                "peak_reserved_bytes": rival.peak_reserved_bytes,
                "host_tensor_bytes": rival.host_bytes,
            }
            promised |= {
                name: max(promised[name], size) for name, size in peaks.items() if promised.get(name) is not None
            }
            if one["kept"]:
                promised["step_seconds"] = rival.step_seconds
        return promised

    @property
    def budget_bytes(self) -> int | None:
        """The budget, None where there is none."""
        return None if self.predicted is None else self.predicted.get("budget_bytes")


def chosen_by(plan: Plan, *, tune: bool) -> Chosen:
    """Returns the recipe of a plan, with its rivals where the run is to find out about them, and tells what was planned."""
    if not tune:
        plan = dataclasses.replace(plan, rivals=())
    promised = _predicted(plan)
    changed = ", ".join(f"{name}={as_typed(value)}" for name, value in plan.recipe.to_mapping(defaults=False).items())
    peak = promised.get("peak_reserved_bytes", plan.estimate.peak_allocated_bytes)
    note(
        f"planned for {format_bytes(plan.budget_bytes)}, {format_bytes(plan.margin_bytes)} of it margin: "
        f"{changed or 'plain'}"
    )
    note(
        f"predicted {format_bytes(peak)} and {format_seconds(plan.step_seconds)} a step, {plan.slowdown:.2f} times the "
        f"fastest ({plan.simulated} recipes simulated; why: plan.json in the run directory)."
    )
    text = json_text({**plan.to_mapping(), "predicted": promised})
    return chosen_of(plan.recipe, text)


def chosen_of(recipe: Recipe, plan: str | None, *, tune: bool = True) -> Chosen:
    """Returns the recipe of a run, with what the text of its `plan.json` adds; None: it was not planned."""
    if plan is None:
        return Chosen(recipe=recipe)
    try:
        stored = json.loads(plan)
        fallbacks = tuple(Recipe.from_mapping(one) for one in stored["fallbacks"])
        return Chosen(
            recipe=recipe,
            fallbacks=fallbacks,
            predicted=dict(stored["predicted"]),
            plan=plan,
            fidelity=Fidelity(**stored["fidelity"]),
            rivals=tuple(map(_rival, stored.get("rivals", ()))) if tune or "tuned" in stored else (),
            tuned=stored.get("tuned"),
            traits=dict(stored.get("traits", {})),  # plans of an earlier version have none
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"plan.json of the run was altered, or written by another version of snugfit ({in_words(error)}). "
            "Remove it, and the run goes on without a plan."
        ) from error


def _rival(stored: Mapping[str, Any]) -> Rival:
    return Rival(**{**stored, "recipe": Recipe.from_mapping(stored["recipe"])})


def _predicted(plan: Plan) -> dict[str, Any]:
    """What a plan promises, by the names of what is measured."""
    promised = under_measured_names(plan.estimate)
    if "peak_reserved_bytes" in promised:
        # Near its limit CUDA gives cached segments back, so no more than what there is can be reserved.
        limit = plan.budget_bytes - plan.margin_bytes - (plan.estimate.context_bytes or 0)
        promised["peak_reserved_bytes"] = min(promised["peak_reserved_bytes"], limit)
    return {
        **promised,
        "budget_bytes": plan.budget_bytes,
        "margin_bytes": plan.margin_bytes,
        "step_seconds": plan.step_seconds,
    }


def under_measured_names(estimate: Estimate) -> dict[str, Any]:
    """Returns what an estimate predicts, by the names of what is measured."""
    peak = estimate.peak_allocated_bytes
    if estimate.peak_reserved_bytes is None:
        peaks = {"peak_tensor_bytes": peak}
    else:
        peaks = {"peak_reserved_bytes": estimate.peak_reserved_bytes, "peak_allocated_bytes": peak}
    return {
        **peaks,
        "host_tensor_bytes": estimate.host_bytes,
        "context_bytes": estimate.context_bytes,
        "step_seconds": estimate.step_seconds,
        "peak_phase": estimate.peak_phase,
        "peak_operator": estimate.peak_operator,
    }
