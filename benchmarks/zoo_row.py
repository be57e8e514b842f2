"""One row of the zoo: three steps for real and predicted, and a plan that must leave the losses as they are.

    python -m benchmarks.zoo_row        (reads `bytes NAME` or `plan NAME`, one a line; answers with a JSON document each)

The process loads libraries once and serves any number of models, so that a zoo takes minutes; the parent ends it where
one takes too long.
"""

from __future__ import annotations

import gc
import json
import math
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

import snugfit
from benchmarks.held_out import take_course
from benchmarks.zoo_models import timm_models, torchvision_models, transformers_models, user_models
from benchmarks.zoo_models.subject import Subject
from snugfit.errors import DoesNotFitError, SnugfitError
from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.recipe import Recipe
from snugfit.simulator.estimate import estimate_named
from snugfit.techniques.batches import tensors_of
from snugfit.workers.pool import Pool
from snugfit.workload import Workload

STEPS = 3
BUDGET_SHARE = 0.7
"""Budget of the plan, as a share of what plain training takes."""
LOSS_TOLERANCE = 1e-5
"""Largest relative difference of a loss between plain training and the plan's."""
SGD_RATE = 0.01
"""Learning rate of the runs whose losses are compared; SGD's update shows every error of a gradient, Adam's hides scales."""

SUBJECTS: dict[str, Callable[[], Subject]] = {
    **user_models.SUBJECTS,
    **transformers_models.SUBJECTS,
    **torchvision_models.SUBJECTS,
    **timm_models.SUBJECTS,
}
"""Name -> makes the model."""

FOLDER = re.compile(r"/\S*/(?=(site-packages|benchmarks|\w[\w.-]*__[\w.-]+)/)(site-packages/)?")
"""Where code lies on the machine that measured, which belongs in no result."""


def compared(subject: Subject, pool: Pool) -> dict[str, Any]:
    """Measures and predicts plain training.

    Args:
        subject: The model.
        pool: Workers that simulate.

    Returns:
        `measured_bytes`, `predicted_bytes`, their `ratio`, and what was `answered`; or `refused` with the error.
    """
    found: dict[str, Any] = {"family": subject.family, "name": subject.name, "threads": torch.get_num_threads()}
    found["measured_bytes"], _ = trained(subject, Recipe(), subject.optimizer, measure=True)
    try:
        found["predicted_bytes"], found["answered"] = predicted(subject, pool)
    except SnugfitError as error:
        return {**found, "refused": one_line(error)}
    return {**found, "ratio": round(found["predicted_bytes"] / found["measured_bytes"], 6)}


def trained(subject: Subject, recipe: Any, optimizer: Any, *, measure: bool) -> tuple[int, list[float]]:
    """Trains for three steps, with an evaluation after the first.

    Args:
        subject: The model.
        recipe: A recipe, or a plan.
        optimizer: A name, or a function from parameters to an optimizer.
        measure: Whether its memory is measured.

    Returns:
        Peak tensor bytes (0 where they are not measured), and the losses.
    """
    events = AllocatorEvents()
    if measure:
        warm_up()  # has collected garbage, too
        events.start()
    torch.manual_seed(0)
    if subject.again is not None:
        subject = subject.again()  # captured networks belong to what is measured
    model = subject.build()
    settings: dict[str, Any] = {}
    if optimizer == "sgd":  # a summed loss has gradients as large as its batch
        summed = subject.arguments.get("loss_weight") == "sum"
        settings["lr"] = SGD_RATE / (sum(one.numel() for one in tensors_of(subject.batch(model))) if summed else 1)
    trainer = snugfit.prepare(model, recipe, optimizer=optimizer, device="cpu", **subject.arguments, **settings)
    losses: list[float] = []

    def batch() -> Any:
        torch.manual_seed(trainer.steps_done)
        return subject.batch(model)

    # Code that takes gradients in forward cannot be evaluated.
    take_course(
        trainer,
        batch,
        subject.arguments,
        steps=STEPS,
        on_loss=lambda loss: losses.append(float(loss)),
        unable=(RuntimeError,),
    )
    if measure:
        events.stop()
    return events.peak_bytes, losses


def predicted(subject: Subject, pool: Pool) -> tuple[int, list[str]]:
    """Predicts the plain run.

    Args:
        subject: The model.
        pool: Workers that simulate.

    Returns:
        Peak tensor bytes, and what was assumed.
    """
    if subject.named is not None:
        workload = Workload(batch_size=subject.batch_size)
        estimate = estimate_named(subject.named, workload=workload, device="cpu", pool=pool)
    else:
        model = subject.build()
        estimate = snugfit.estimate(
            model,
            subject.batch(model),
            optimizer=subject.optimizer,
            device="cpu",
            assume=subject.assume,
            pool=pool,
            **subject.arguments,
        )
    return estimate.peak_allocated_bytes, [FOLDER.sub("", one) for one in estimate.answered]


def planned(subject: Subject, pool: Pool) -> dict[str, Any]:
    """Plans for less memory by exact techniques alone, trains by it, and compares the losses with plain training's.

    Args:
        subject: The model.
        pool: Workers that simulate.

    Returns:
        `plan_recipe`, `budget_bytes`, `plan_predicted_bytes`, `plan_measured_bytes` and `loss_difference`; or
        `plan_refused` with the error.
    """
    plain_bytes, _ = predicted(subject, pool)
    try:
        plan = _plan(subject, int(BUDGET_SHARE * plain_bytes), pool)
    except SnugfitError as error:
        return {"plan_refused": one_line(error)}
    measured_bytes, _ = trained(subject, plan, subject.optimizer, measure=True)
    optimizer = "sgd" if isinstance(subject.optimizer, str) else subject.optimizer
    _, plain = trained(subject, Recipe(), optimizer, measure=False)
    _, changed = trained(subject, plan.recipe, optimizer, measure=False)
    return {
        "plan_recipe": plan.recipe.to_mapping(defaults=False),
        "budget_bytes": plan.budget_bytes,
        "plan_predicted_bytes": plan.estimate.peak_allocated_bytes,
        "plan_measured_bytes": measured_bytes,
        "loss_difference": max(map(difference, plain, changed)),
        "loss_tolerance": LOSS_TOLERANCE,
        "simulated": plan.simulated,
    }


def _plan(subject: Subject, budget_bytes: int, pool: Pool) -> Any:
    """The plan of a model for a budget, or for the smallest that works where that is more."""
    model = None if subject.named is not None else subject.build()

    def at(budget: int) -> Any:
        if subject.named is not None:
            from snugfit.planner.plan import plan_named

            workload = Workload(batch_size=subject.batch_size)
            return plan_named(subject.named, workload=workload, budget=budget, device="cpu", pool=pool)
        return snugfit.plan(
            model,
            subject.batch(model),
            optimizer=subject.optimizer,
            budget=budget,
            device="cpu",
            assume=subject.assume,
            pool=pool,
            **subject.arguments,
        )

    return or_the_smallest(at, budget_bytes)


def or_the_smallest(at: Callable[[int], Any], budget_bytes: int) -> Any:
    """Returns the plan for a budget, or for the smallest that works where that is more.

    Args:
        at: Plans for a budget.
        budget_bytes: The budget.
    """
    try:
        return at(budget_bytes)
    except DoesNotFitError as error:
        smallest: Mapping[str, int] = getattr(error, "smallest_budget_bytes", {})
        if "exact" not in smallest:
            raise
        return at(smallest["exact"])


def difference(plain: float, changed: float) -> float:
    """Returns how far a loss is from plain training's, as a part of it."""
    if not math.isfinite(plain) or not math.isfinite(changed):
        return math.inf
    return abs(changed - plain) / max(abs(plain), 1e-3)


def one_line(error: BaseException) -> str:
    """Returns an error in one line, without the paths of this machine.

    Args:
        error: The error.
    """
    from benchmarks.gpu.rows import without_paths

    return FOLDER.sub("", without_paths(" ".join(str(error).split())))[:600]


def serve(
    kinds: Mapping[str, Callable[[Any, Pool], dict[str, Any]]], subjects: Mapping[str, Callable[[], Any]]
) -> None:
    """Answers one request a line, `KIND NAME`, with a JSON document each, until there are no more.

    Args:
        kinds: Part of a row -> makes it of a subject.
        subjects: Name -> makes the subject.
    """
    warnings.simplefilter("ignore")
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print
    pool = Pool()
    try:
        for line in sys.stdin:
            kind, _, name = line.strip().partition(" ")
            started = time.monotonic()
            try:
                found = kinds[kind](subjects[name](), pool)
            except Exception as error:
                found = {"failed": f"{type(error).__name__}: {one_line(error)}"}
            gc.collect()
            found[f"{kind}_seconds"] = round(time.monotonic() - started, 1)
            print(json.dumps({"name": name, **found}), file=answers, flush=True)
    finally:
        pool.close()


if __name__ == "__main__":
    serve({"bytes": compared, "plan": planned}, SUBJECTS)
