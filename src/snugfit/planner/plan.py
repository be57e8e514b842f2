"""`snugfit.plan`: the fastest recipe that fits a memory budget, found without a GPU, and why.

The recipe is one that was simulated in full, and whose replay goes through on a card of the budget less the margin and
CUDA's context, cached segments given back under pressure as CUDA does. Imports no torch; a model by name is built in
workers only.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.devices import Device
from snugfit.errors import InputError
from snugfit.fidelity import Fidelity
from snugfit.planner.constraints import Constraints, constraints_from
from snugfit.planner.places import budget_for, place_for
from snugfit.recipe import Recipe
from snugfit.simulator.assumptions import AssumeArgument, assumptions_from
from snugfit.simulator.prediction import Estimate
from snugfit.simulator.request import NamedModel
from snugfit.workload import CUSTOM_OPTIMIZER, Workload, algorithm_and_storage

if TYPE_CHECKING:
    from snugfit.simulator.pool import Pool


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FrontierPoint:
    """A simulated recipe that no other beats in both memory and time."""

    recipe: Recipe
    """The recipe."""
    total_bytes: int
    """What it reserves where memory is not short (on cpu: what its tensors take), with CUDA's context."""
    need_bytes: int
    """The smallest memory in which it goes through, CUDA's context apart."""
    step_seconds: float
    """Predicted seconds of a step."""
    host_bytes: int
    """Host memory that it takes."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
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
    """Host memory there is; None where nobody knows."""
    fallbacks: tuple[Recipe, ...]
    """Recipes of the same kind that need less memory, fastest first."""
    neighbours: tuple[str, ...]
    """What a little more or less budget would change."""
    simulated: int
    """How many recipes were simulated."""
    maximized: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """batch_size or seq_len -> the largest value that fits, where that was asked for."""

    @property
    def step_seconds(self) -> float:
        """Predicted seconds of a step."""
        assert self.estimate.step_seconds is not None
        return self.estimate.step_seconds

    def explain(self) -> str:
        """Returns the plan as text for a console: recipe, prediction, reasons, frontier."""
        from snugfit.report.plan_card import plan_card

        return plan_card(self)

    def __str__(self) -> str:
        return self.explain()

    def to_mapping(self) -> dict[str, Any]:
        """Returns the plan as plain data."""
        return {
            "recipe": self.recipe.to_mapping(),
            "estimate": self.estimate.to_mapping(),
            "fidelity": dataclasses.asdict(self.fidelity),
            "frontier": [{**dataclasses.asdict(point), "recipe": point.recipe.to_mapping()} for point in self.frontier],
            "reasons": dict(self.reasons),
            "slowdown": self.slowdown,
            "budget_bytes": self.budget_bytes,
            "margin_bytes": self.margin_bytes,
            "margin_source": self.margin_source,
            "host_budget_bytes": self.host_budget_bytes,
            "fallbacks": [recipe.to_mapping() for recipe in self.fallbacks],
            "neighbours": list(self.neighbours),
            "simulated": self.simulated,
            "maximized": dict(self.maximized),
        }

    def to_json(self) -> str:
        """Returns the plan as one JSON document."""
        return json.dumps(self.to_mapping(), indent=2, allow_nan=False)

    def draw(self, path: str | Path) -> None:
        """Draws the frontier.

        Args:
            path: The file; its ending says the format (png, svg).
        """
        from snugfit.report.plan_figure import draw_plan

        draw_plan(self, Path(path))


def plan(
    model: Any,
    batch: Any,
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    optimizer: Any = "adamw",
    budget: str | int | None = None,
    device: str | Device | None = None,
    allow: str | Iterable[str] = "exact",
    pin: Mapping[str, Any] | None = None,
    forbid: Iterable[str] | None = None,
    host_budget: str | int | None = None,
    forward: Callable[[Any, Any], Any] | None = None,
    split: Callable[[Any, int], list[Any]] | None = None,
    loss_weight: Any = "samples",
    assume: AssumeArgument = None,
    pool: Pool | None = None,
    **settings: Any,
) -> Plan:
    """Finds the fastest recipe that fits a memory budget.

    The model is not changed and not copied; only shapes, dtypes and code go to the simulation's processes.

    Args:
        model: A module on any device, meta included, or a function without arguments that builds one.
        batch: The whole effective batch: tensors on any device, or (shape, dtype) pairs in their place; or a list of
            batches (of varying lengths).
        loss: Function of (output, batch) giving a 0-dim tensor; None where the model returns its loss.
        optimizer: A name (one with low-bit state is a pin), or a function from parameters to an optimizer.
        budget: Device memory, such as "8GiB", or bytes; None: all of the card, of this machine's GPU what is free.
        device: A card's name (`snugfit devices`), `local`, `cpu`; None: this machine's GPU, or else its processor.
        allow: Fidelity that may be given up: "exact", or "rounding", "different", or both with a comma.
        pin: Recipe field -> the value it must have.
        forbid: Recipe fields that must stay as plain training has them.
        host_budget: Host memory that may be used; None: what is free.
        forward: Function of (model, batch); None: as for `snugfit.prepare`.
        split: Function of (batch, size) giving microbatches; None: along dimension 0.
        loss_weight: How losses of microbatches combine, as for `snugfit.prepare`.
        assume: What to take for values that simulated tensors do not have, as for `snugfit.estimate`.
        pool: Workers to use; None: two, which end with the search.
        **settings: Fields of `Workload`.

    Returns:
        The plan.

    Raises:
        InputError: Model, batch, loss, budget or device cannot be used.
        RecipeError: Settings, pins and bans are wrong or contradict each other.
        DoesNotFitError: Nothing fits; names the smallest budgets that would.
        CannotSimulateError: Something needs values, which simulated tensors do not have.
    """
    from snugfit.planner.planner import Planner

    if not callable(model):
        raise InputError(f"model is a {type(model).__name__}; give a torch.nn.Module or a function that builds one.")
    pins = dict(pin or {})
    if isinstance(optimizer, str):
        optimizer, storage = algorithm_and_storage(optimizer)
        if storage is not None:
            pins.setdefault("optimizer", storage)
    Workload.from_mapping({**settings, "optimizer": optimizer if isinstance(optimizer, str) else CUSTOM_OPTIMIZER})
    constraints = constraints_from(allow=allow, pin=pins, forbid=forbid, host_budget=host_budget)
    place, budget_bytes = budget_for(place_for(device), budget)
    from snugfit.planner.subjects import given_subject
    from snugfit.simulator.batch_shapes import skeleton_of

    arguments = {
        **settings, "loss": loss, "optimizer": optimizer, "forward": forward, "split": split,
        "loss_weight": loss_weight, "assume": assumptions_from(assume),
    }  # fmt: skip
    with Planner(given_subject(model, skeleton_of(batch), arguments), place, constraints, pool=pool) as planner:
        return planner.at(budget_bytes)


def plan_named(
    named: NamedModel,
    *,
    workload: Workload | None = None,
    budget: str | int | None = None,
    device: str | Device | None = None,
    constraints: Constraints | None = None,
    maximize: str | None = None,
    pool: Pool | None = None,
) -> Plan:
    """Finds the fastest recipe for a model by its name; it is built without weights, and nothing is downloaded.

    Args:
        named: The model and the shape of its batch.
        workload: Optimizer, batch size and training settings; None: AdamW on batches of 64.
        budget: As for `plan`.
        device: As for `plan`.
        constraints: Pins, bans and what may be given up; None: exact, all else free.
        maximize: batch_size or seq_len: the largest value for which a plan fits, and the plan for it.
        pool: Workers to use; None: two, which end with the search.

    Returns:
        The plan.

    Raises:
        InputError: The model does not exist, does not fit its batch, or budget or device cannot be used.
        RecipeError: Pins contradict the training settings.
        DoesNotFitError: Nothing fits; names the smallest budgets that would.
        CannotSimulateError: Something needs values, which simulated tensors do not have.
    """
    from snugfit.planner.planner import Planner
    from snugfit.planner.subjects import named_subject

    workload = workload or Workload(batch_size=64)
    if workload.batch_size is None:
        workload = workload.replace(batch_size=64)
    constraints = constraints or constraints_from()
    place, budget_bytes = budget_for(place_for(device), budget)
    if maximize is not None:
        from snugfit.planner.maximize import plan_for_largest

        return plan_for_largest(maximize, named, workload, place, constraints, budget_bytes, pool=pool)
    with Planner(named_subject(named, workload), place, constraints, pool=pool) as planner:
        return planner.at(budget_bytes)
