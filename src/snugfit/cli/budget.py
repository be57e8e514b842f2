"""`snugfit train --budget`: the plan of a run, from the data it will read. torch is imported by the functions."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from snugfit.cli import options, text_assembly
from snugfit.cli.request import Request
from snugfit.errors import InputError
from snugfit.fidelity import Fidelity
from snugfit.planner.constraints import Constraints
from snugfit.recipe import Recipe
from snugfit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import torch

    from snugfit.planner.plan_result import Plan
    from snugfit.workloads.data import Splits
    from snugfit.workloads.tasks import Task
    from snugfit.workloads.text import TextSplits

_WITHOUT_BUDGET = ("allow", "pins", "forbidden", "host_budget")


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
    traits: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    """What the plan has found out about model and loss."""

    def limit_memory(self, device: torch.device) -> None:
        """Makes the budget real on CUDA: the process may reserve no more. A CPU has no such limit.

        Args:
            device: Where training runs.
        """
        import torch

        if self.predicted is not None and device.type == "cuda":
            total = torch.cuda.get_device_properties(device).total_memory
            allowed = self.predicted["budget_bytes"] - (self.predicted["context_bytes"] or 0)
            torch.cuda.set_per_process_memory_fraction(min(allowed / total, 1.0), device)


def check_budget_options(args: Any) -> None:
    """Refuses options of a plan where none is asked for, and a plan where the run has its recipe already.

    Args:
        args: What the command line gave.

    Raises:
        InputError: Such an option is there.
    """
    names = {"allow": "--allow", "pins": "--pin", "forbidden": "--forbid", "host_budget": "--host-budget"}
    given = [option for name, option in names.items() if getattr(args, name)]
    if args.budget is None and given:
        raise InputError(f"{', '.join(given)} belongs to a plan; give --budget SIZE too.")
    if args.budget is not None and args.resume:
        raise InputError("a run that is resumed has its plan already. Leave --budget out, or start another run.")


def plan_training(
    request: Request, data: Splits | TextSplits, task: Task, device: torch.device, budget: str, constraints: Constraints
) -> Plan:
    """Plans a run for its widest batch.

    Args:
        request: What is to be trained.
        data: Its batches give the shapes.
        task: The loss.
        device: Where to train; its memory limits the budget.
        budget: Device memory, as typed.
        constraints: Pins, bans and what may be given up.

    Returns:
        The plan.

    Raises:
        InputError: The model cannot be built, or the budget cannot be used.
        DoesNotFitError: Nothing fits; names the smallest budgets that would.
        CannotSimulateError: Something in the model needs values.
    """
    from snugfit.planner.places import budget_for, place_for
    from snugfit.planner.planner import Planner
    from snugfit.planner.separable import given_check
    from snugfit.planner.subjects import given_subject
    from snugfit.simulator.batch_shapes import skeleton_of
    from snugfit.workloads.models import parse_model_args
    from snugfit.workloads.text import TextSplits

    settings = request.settings
    assert settings.batch_size is not None
    model_args = parse_model_args(request.model_args)
    if isinstance(data, TextSplits):
        model_args = text_assembly.text_model_args(request, data, model_args)
    model = partial(_without_weights, request.model, model_args, data.num_classes, request.task, settings.freeze)
    skipped = ("weights", "freeze", *options.TRAITS)  # frozen when it is built; traits are read off the model
    given = {name: value for name, value in settings.to_mapping(defaults=False).items() if name not in skipped}
    arguments = {**given, "loss": task.loss, "loss_weight": task.loss_weight, "optimizer": settings.optimizer}
    place, size = budget_for(place_for("local" if device.type == "cuda" else "cpu"), budget)
    batch = widest_batch(data.train, settings.batch_size)
    shapes = skeleton_of(batch)
    subject = dataclasses.replace(given_subject(model, shapes, arguments), title=request.model)
    check = given_check(model, batch, shapes, arguments)
    with Planner(subject, place, constraints, check=check) as planner:
        return planner.at(size)


def _without_weights(
    spec: str, model_args: Mapping[str, Any], num_classes: int | None, task: str | None, freeze: tuple[str, ...]
) -> torch.nn.Module:
    """Builds the model without memory; runs in a worker."""
    from snugfit.workloads.models import build_model

    given: dict[str, Any] = {"model_args": model_args, "num_classes": num_classes, "task": task, "freeze": freeze}
    try:
        return build_model(spec, **given, init="device", device="meta")
    except InputError:  # its constructor needs values
        return build_model(spec, **given, init="host", device="meta")


def widest_batch(dataset: Any, size: int) -> Any:
    """Returns the batch that takes most memory: all images are alike, of texts the longest come together.

    Args:
        dataset: The training part.
        size: Samples of a batch.

    Returns:
        The batch.
    """
    import numpy as np

    from snugfit.workloads.text.ragged import Ragged

    ids = getattr(dataset, "ids", None)
    longest = np.argsort(ids.lengths, kind="stable")[-size:] if isinstance(ids, Ragged) else range(size)
    return dataset.batch([int(index) for index in longest])


def chosen_by(plan: Plan) -> Chosen:
    """Returns the recipe of a plan, and tells the person what was planned.

    Args:
        plan: The plan.
    """
    promised = _predicted(plan)
    changed = ", ".join(f"{name}={_word(value)}" for name, value in plan.recipe.to_mapping(defaults=False).items())
    peak = promised.get("peak_reserved_bytes", plan.estimate.peak_allocated_bytes)
    print(
        f"snugfit: planned for {format_bytes(plan.budget_bytes)}, {format_bytes(plan.margin_bytes)} of it margin: "
        f"{changed or 'plain'}\n"
        f"snugfit: predicted {format_bytes(peak)} and {format_seconds(plan.step_seconds)} a step, {plan.slowdown:.2f} times "
        f"the fastest ({plan.simulated} recipes simulated; why: plan.json in the run directory).",
        file=sys.stderr,
    )
    text = json.dumps({**plan.to_mapping(), "predicted": promised}, indent=2, allow_nan=False)
    return Chosen(
        recipe=plan.recipe,
        fallbacks=plan.fallbacks,
        predicted=promised,
        plan=text,
        fidelity=plan.fidelity,
        traits=plan.traits,
    )


def chosen_before(recipe: Recipe, plan: str | None) -> Chosen:
    """Returns the recipe of a run that goes on.

    Args:
        recipe: The run's recipe.
        plan: Text of its `plan.json`, or None where it was not planned.

    Raises:
        InputError: The file was altered.
    """
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
            traits=dict(stored.get("traits", {})),  # plans of an earlier version have none
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"plan.json of the run was altered, or written by another version of snugfit ({type(error).__name__}: {error}). "
            "Remove it, and the run goes on without a plan."
        ) from error


def _predicted(plan: Plan) -> dict[str, Any]:
    """What a plan promises, under the names of what is measured."""
    estimate = plan.estimate
    promised = {
        "peak_allocated_bytes": estimate.peak_allocated_bytes,
        "host_tensor_bytes": estimate.host_bytes,
        "context_bytes": estimate.context_bytes,
        "budget_bytes": plan.budget_bytes,
        "margin_bytes": plan.margin_bytes,
        "step_seconds": plan.step_seconds,
    }
    if estimate.peak_reserved_bytes is None:
        return {"peak_tensor_bytes": promised.pop("peak_allocated_bytes"), **promised}
    # Near its limit CUDA gives cached segments back, so no more than what there is can be reserved.
    limit = plan.budget_bytes - plan.margin_bytes - (estimate.context_bytes or 0)
    return {"peak_reserved_bytes": min(estimate.peak_reserved_bytes, limit), **promised}


def _word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
