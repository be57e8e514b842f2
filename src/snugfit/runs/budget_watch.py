"""A run with a budget that takes more than the budget says so, and goes on with less.

On CUDA the budget is a limit of the process, and a step that wants more runs out of memory, which `training/recovery.py`
answers. A CPU has no such limit: there the measured tensor bytes of the build, of the first steps and of the first
evaluation are held against the budget. Above it, the run goes on with the next fallback of the plan that gives the same
update, which is measured in its turn; after the last one, with the one that was measured to take the least. A run that
trains to its end is done whatever it took, so it ends with exit code 0; the message, the card and the JSON document
(`over_budget_bytes`, `over_budget`) say by how much it was over. Of several processes each is measured, the fullest one is
held against the budget, and all take another recipe together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from snugfit.errors import option, warn
from snugfit.fields import as_data, as_typed
from snugfit.recipe import Recipe
from snugfit.training.course import Observer
from snugfit.units import format_bytes

if TYPE_CHECKING:
    from snugfit.measure.meter import Meter
    from snugfit.training.trainer import Trainer

ALIKE = 1.01
"""Recipes are as lean as one another when they take so nearly the same."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OverBudget:
    """One occasion on which the run took more than its budget."""

    during: str
    """build, a step and its number, or evaluation."""
    recipe: Recipe
    """What the run went by."""
    peak_tensor_bytes: int
    """What it took."""
    over_bytes: int
    """By how much that was over the budget."""
    next_recipe: Recipe | None
    """What the run goes on with; None: the same, because there is nothing that needs less, or nothing to be done."""


class BudgetWatch(Observer):
    """Stands between the loop and the meter, and compares what was measured with the budget."""

    def __init__(self, meter: Meter, trainer: Trainer, predicted: Mapping[str, Any] | None) -> None:
        """Starts once the trainer is built; `meter` has measured the build.

        `predicted`: what was promised; None, or without `budget_bytes`: there is no budget.
        """
        self._meter, self._trainer = meter, trainer
        self._predicted = predicted or {}
        self._budget_bytes: int | None = self._predicted.get("budget_bytes")
        self._at_end = False
        self._measured: list[tuple[int, Recipe]] = []
        self._peak: int | None = None
        self._seen_since_change = True
        self.exceeded: list[OverBudget] = []
        """What was over the budget, in order."""
        if self._over():
            self._tell("building the model", "build", change=False)

    def after_step(self, steps_done: int) -> None:
        """Checks whether the step stayed within the budget."""
        self._meter.after_step(steps_done)
        self._seen_since_change = True
        if self._over():
            step = self._trainer.steps_done
            self._tell(f"step {step}", f"step {step}", change=True)

    def before_evaluation(self) -> None:
        """Notes that an evaluation begins."""
        self._meter.before_evaluation()

    def after_evaluation(self) -> None:
        """Checks whether the evaluation stayed within the budget."""
        self._meter.after_evaluation()
        if self._over():
            self._tell("the evaluation", "evaluation", change=True)

    def _over(self) -> bool:
        if self._budget_bytes is None or self._at_end:
            return False
        self._peak = self._meter.recent_peak_bytes()
        if self._peak is None:
            return False
        if self._trainer.ranks is not None:  # one cannot take another recipe alone
            self._peak = int(max(peak for (peak,) in self._trainer.ranks.agree([self._peak])))
        return self._peak > self._budget_bytes

    def _tell(self, what: str, during: str, *, change: bool) -> None:
        peak, before = self._peak, self._trainer.recipe
        assert peak is not None and self._budget_bytes is not None
        if during.startswith("step"):  # an evaluation alone does not tell what a recipe's steps take
            self._measured.append((peak, before))
        self._seen_since_change = False
        with self._meter.changing():
            self._at_end = change and not self._trainer.take_next_fallback()
            if self._at_end and self._measured:
                # What needs nearly as little as the leanest, and came first, is faster.
                least = min(size for size, _ in self._measured)
                self._trainer.change_recipe(next(one for size, one in self._measured if size <= ALIKE * least))
        changed = self._trainer.recipe != before
        over = OverBudget(
            during=during,
            recipe=before,
            peak_tensor_bytes=peak,
            over_bytes=peak - self._budget_bytes,
            next_recipe=self._trainer.recipe if changed else None,
        )
        first = not self.exceeded
        self.exceeded.append(over)
        promised = self._predicted.get("peak_tensor_bytes")
        beside = f"; {format_bytes(promised)} were predicted" if first and promised is not None else ""
        warn(
            f"{what} took {format_bytes(peak)} of tensors, {format_bytes(over.over_bytes)} over the budget of "
            f"{format_bytes(self._budget_bytes)}{beside}. {self._follows(over, change)}",
        )

    def _follows(self, over: OverBudget, change: bool) -> str:
        if not change:
            return "The model is built now, and training goes on; init=device or init=meta need less for that."
        if over.next_recipe is None:
            return (
                "Nothing that takes less and gives the same update is left, so the run goes on as it is. Next time give "
                f"a larger {option('budget')}, or let the plan round ({option('allow')})."
            )
        found = over.next_recipe.to_mapping(defaults=False)
        words = ", ".join(f"{name}={as_typed(value)}" for name, value in found.items()) or "the plain recipe"
        why = ", whose steps took the least of all that were measured" if self._at_end else ", which needs less"
        return f"The run goes on with {words}{why}; the update is the same."

    def result(self, measured: Mapping[str, int | None]) -> dict[str, Any]:
        """Returns the part of the run's result about its budget.

        `over_budget_bytes` (0 where the budget was kept; None without a budget, or where the device keeps the limit),
        `over_budget` (each time that it was exceeded) and, where it was, `peak_tensor_bytes_at_end` (the peak since;
        None where no step came after).
        """
        peak = measured.get("peak_tensor_bytes")
        if self._budget_bytes is None or peak is None:
            return {"over_budget_bytes": None, "over_budget": []}
        found: dict[str, Any] = {
            "over_budget_bytes": max(0, peak - self._budget_bytes),
            "over_budget": as_data(self.exceeded),
        }
        if self.exceeded:
            found["peak_tensor_bytes_at_end"] = self._meter.recent_peak_bytes() if self._seen_since_change else None
        return found
