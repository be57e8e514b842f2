"""A plan: the recipe that was found, why, what fits beside it, and what to fall back on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snugfit.fidelity import Fidelity
from snugfit.fields import as_data
from snugfit.json_files import json_text
from snugfit.planner.budgets import BudgetAnswer, Budgets
from snugfit.planner.elsewhere import Elsewhere
from snugfit.planner.frontier import FrontierPoint
from snugfit.planner.rivals import Rival
from snugfit.recipe import Recipe
from snugfit.report.notebook import ShownAsCard
from snugfit.simulator.prediction import Estimate


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpusTried:
    """A number of GPUs on which something that fits was looked for."""

    gpus: int
    """GPUs of each machine."""
    nodes: int
    """Machines."""
    fits: bool
    """Whether something was found."""
    step_seconds: float | None
    """Predicted seconds of a step by it; on more GPUs than the plan is for, the fastest of a few recipes."""
    recipe: Recipe | None
    """Its recipe."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan(ShownAsCard):
    """The fastest recipe that was found to fit a budget."""

    recipe: Recipe
    """The recipe."""
    estimate: Estimate
    """What it needs; its one device is a card of the size of the budget less the margin."""
    fidelity: Fidelity
    """How close it is to plain training."""
    frontier: tuple[FrontierPoint, ...]
    """Recipes that no other beats in both memory and time, least memory first."""
    reasons: Mapping[str, str]
    """Recipe field -> why it is on or off."""
    slowdown: float
    """Time of a step over that of the fastest recipe without a budget."""
    budget_bytes: int
    """Memory there is; CUDA's context and the margin come out of it."""
    margin_bytes: int
    """Part of the budget that stays free because predictions err."""
    margin_source: str
    """What the margin is derived from."""
    host_budget_bytes: int | None
    """Host memory of a machine there is; None where nobody knows. What the plan needs of it is `estimate.host_bytes`."""
    fallbacks: tuple[Recipe, ...]
    """Recipes of the same kind that need less memory, fastest first."""
    neighbours: tuple[str, ...]
    """What a little more or less budget would change."""
    simulated: int
    """How many recipes were simulated."""
    budgets: Budgets
    """What answers other budgets of the same work (`at`)."""
    traits: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    """What a check of model and loss has found, fields of the workload; `snugfit.prepare` goes by it."""
    maximized: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """batch_size or seq_len -> the largest value that fits, where that was asked for."""
    gpus_tried: tuple[GpusTried, ...] = ()
    """Numbers of GPUs, fewest first, where the fewest were asked for; the plan is for the first that fits."""
    rivals: tuple[Rival, ...] = ()
    """Recipes of the same fidelity that fit and promise about as much, fastest first; a run may find one to be faster."""
    elsewhere: tuple[Elsewhere, ...] = ()
    """Where several GPUs train: what snugfit does not run and is the natural next step, with the tools that do."""

    @property
    def step_seconds(self) -> float:
        """Predicted seconds of a step."""
        assert self.estimate.step_seconds is not None
        return self.estimate.step_seconds

    def at(self, budget: str | int) -> BudgetAnswer:
        """Returns the best recipe for another budget of the same work, of those that the plan's search has simulated.

        Args:
            budget: Device memory, such as "10GiB", or bytes.

        Returns:
            The answer, which `snugfit.prepare` takes as it takes a plan; nothing is simulated for it.

        Raises:
            InputError: The budget is not understood.
            DoesNotFitError: Nothing that was simulated fits; names the smallest budget.
        """
        return self.budgets.at(budget)

    def explain(self) -> str:
        """Returns the plan as text for a console: recipe, prediction, reasons, frontier."""
        from snugfit.report.plan_card import plan_card

        return plan_card(self)

    def __str__(self) -> str:
        return self.explain()

    def to_mapping(self) -> dict[str, Any]:
        """Returns the plan as plain data."""
        plain: dict[str, Any] = as_data(self)
        return plain

    def to_json(self) -> str:
        """Returns the plan as one JSON document."""
        return json_text(self.to_mapping())

    def draw(self, path: str | Path) -> None:
        """Draws the frontier.

        Args:
            path: The file; its ending says the format (png, svg).
        """
        from snugfit.report.plan_figure import draw_plan

        draw_plan(self, Path(path))
