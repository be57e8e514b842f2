"""`snugfit.plan`: the fastest recipe that fits a memory budget, found without a GPU, and why.

The recipe is one that was simulated in full, and whose replay goes through on a card of the budget less the margin and
CUDA's context, cached segments given back under pressure as CUDA does. Imports no torch; a model by name is built in
workers only.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from snugfit.devices import Device
from snugfit.errors import InputError
from snugfit.fields import check_keywords
from snugfit.planner.constraints import Constraints, constraints_from
from snugfit.planner.own_loop import for_own_loop, without_loop
from snugfit.planner.places import budget_for, place_for
from snugfit.planner.plan_result import Plan
from snugfit.simulator.estimate import check_step
from snugfit.simulator.given_batches import NOT_GIVEN, batches_of, given_batches
from snugfit.simulator.request import NamedModel
from snugfit.simulator.subjects import BATCH_SIZE, given_subject, named_subject, step_subject, title_of
from snugfit.values.assumptions import AssumeArgument, assumptions_from
from snugfit.workload import CUSTOM_OPTIMIZER, Workload, algorithm_and_storage

if TYPE_CHECKING:
    from snugfit.workers.pool import Pool


def plan(
    model: Any,
    batch: Any = NOT_GIVEN,
    *,
    batches: Sequence[Any] | None = None,
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
    step: Callable[[Any, Any, Any], Any] | None = None,
    steps: int | None = None,
    own_loop: bool = False,
    pool: Pool | None = None,
    **settings: Any,
) -> Plan:
    """Finds the fastest recipe that fits a memory budget.

    The model is not changed and not copied; only shapes, dtypes and code go to the simulation's processes. Whether
    microbatches add up to the batch is tried on a few samples where that is cheap, with the model's own code.

    Args:
        model: A module on any device, meta included, or a function without arguments that builds one.
        batch: The whole effective batch, as `Trainer.step` takes it: tensors on any device, or (shape, dtype) pairs in
            their place, alone or in a tuple, a list or a dict.
        batches: Several batches (of varying lengths) in place of one.
        loss: Function of (output, batch) giving a 0-dim tensor; None where the model returns its loss.
        optimizer: A name (one with low-bit state is a pin), an optimizer of the model's parameters, or a function from
            parameters to one.
        budget: Device memory, such as "8GiB", or bytes; None: all of the card, of this machine's GPU what is free.
        device: A card's name (`snugfit devices`), `local`, `cpu`; None: this machine's GPU, or else its processor.
        allow: Fidelity that may be given up: "exact", or "rounding", "different", or both with a comma.
        pin: Recipe field -> the value it must have.
        forbid: Recipe fields that must stay as plain training has them.
        host_budget: Host memory of a machine that may be used; None: what is free here, and no limit for a card by its
            name, whose machine nobody knows; the plan says what it needs.
        forward: Function of (model, batch); None: as for `snugfit.prepare`.
        split: Function of (batch, size) giving microbatches; None: along dimension 0.
        loss_weight: How losses of microbatches combine, as for `snugfit.prepare`.
        assume: What to take for values that simulated tensors do not have, as for `snugfit.estimate`.
        step: Function of (model, optimizer, batch) that trains in place of `Trainer.step`: the plan is for a loop of your
            own, and each recipe is predicted by `snugfit.apply(model, recipe)` and this step as it is written.
        steps: How often `step` is called, as for `snugfit.estimate`.
        own_loop: Whether the plan is for `snugfit.apply`: only what lives in the model is chosen, nothing of the step.
        pool: Workers to use; None: two, which end with the search.
        **settings: Fields of `Workload`; gpus may also be "auto": the plan is then for the fewest that do it.

    Returns:
        The plan.

    Raises:
        InputError: Model, batch, loss, budget or device cannot be used.
        RecipeError: Settings, pins and bans are wrong or contradict each other.
        DoesNotFitError: Nothing fits; names the smallest budgets that would.
        CannotSimulateError: Something needs values, which simulated tensors do not have.
    """
    from snugfit.planner.planner import Planner
    from snugfit.planner.separable import given_check
    from snugfit.training.given_optimizer import name_of

    check_keywords(plan, settings, Workload)
    title_of(model)
    given = given_batches(batch, batches, step)
    pins = dict(pin or {})
    if step is not None:
        check_step(step, None, steps, loss, forward, split)
    elif steps is not None:
        raise InputError("steps= says how often step= is called, and no step= is given. Leave it out.")
    own_loop = own_loop or step is not None
    if own_loop:
        forbid = without_loop(pins, forbid, settings)
    if step is None and isinstance(optimizer, str):
        optimizer, storage = algorithm_and_storage(optimizer)
        if storage is not None:
            pins.setdefault("optimizer", storage)
    fewest = settings.get("gpus") == "auto"
    if fewest:
        settings["gpus"] = 1
    workload = Workload.from_mapping({**settings, "optimizer": CUSTOM_OPTIMIZER if step else name_of(optimizer)})
    constraints = constraints_from(allow=allow, pin=pins, forbid=forbid, host_budget=host_budget, device=device)
    place, budget_bytes = budget_for(place_for(device), budget)
    from snugfit.simulator.batch_shapes import lives_on_host, said_how_it_was_read, skeleton_of

    arguments = {
        **settings, "loss": loss, "optimizer": optimizer, "forward": forward, "split": split,
        "loss_weight": loss_weight, "assume": assumptions_from(assume),
    }  # fmt: skip
    shapes = skeleton_of(given)
    check = given_check(model, given, shapes, arguments)
    if step is not None:
        taken = {**settings, "assume": arguments["assume"]}
        subject = step_subject(step, model, optimizer, shapes, taken, steps=steps, on_host=lives_on_host(given))
        with said_how_it_was_read(given), Planner(subject, place, constraints, pool=pool) as planner:
            return for_own_loop(planner.at(budget_bytes))

    def planner_for(gpus: int, nodes: int, workers: Pool | None = None) -> Planner:
        subject = given_subject(model, shapes, {**arguments, "gpus": gpus, "nodes": nodes})
        return Planner(subject, place, constraints, pool=workers or pool, check=check)

    with said_how_it_was_read(given):
        if fewest:
            from snugfit.simulator.batches import longest

            samples = workload.batch_size or longest(batches_of(shapes))
            return _fewest(planner_for, samples, workload.nodes, budget_bytes, pool)
        with planner_for(workload.gpus, workload.nodes) as planner:
            found = planner.at(budget_bytes)
            return for_own_loop(found) if own_loop else found


def plan_named(
    named: NamedModel,
    *,
    workload: Workload | None = None,
    budget: str | int | None = None,
    device: str | Device | None = None,
    constraints: Constraints | None = None,
    maximize: str | None = None,
    fewest_gpus: bool = False,
    pool: Pool | None = None,
) -> Plan:
    """Finds the fastest recipe for a model by its name; it is built without weights, and nothing is downloaded.

    `maximize`: batch_size or seq_len: the largest value for which a plan fits, and the plan for it.
    `fewest_gpus`: whether the plan is for the fewest GPUs that do it, whatever the workload says.
    `workload`: optimizer, batch size and training settings; None: AdamW on batches of 64.
    `constraints`: pins, bans and what may be given up; None: exact, all else free.
    `pool`: workers to use; None: two, which end with the search.
    """
    from snugfit.planner.planner import Planner
    from snugfit.planner.separable import named_check

    workload = workload or Workload()
    constraints = constraints or constraints_from(device=device)
    place, budget_bytes = budget_for(place_for(device), budget)
    if maximize is not None:
        if fewest_gpus:
            raise InputError(
                "--maximize is for GPUs whose number is given; leave --maximize, or --gpus auto (--minimize gpus), out."
            )
        from snugfit.planner.maximize import plan_for_largest

        return plan_for_largest(maximize, named, workload, place, constraints, budget_bytes, pool=pool)
    check = named_check(named, workload)

    def planner_for(gpus: int, nodes: int, workers: Pool | None = None) -> Planner:
        subject = named_subject(named, workload.replace(gpus=gpus, nodes=nodes))
        return Planner(subject, place, constraints, pool=workers or pool, check=check)

    if fewest_gpus:
        return _fewest(planner_for, workload.batch_size or BATCH_SIZE, workload.nodes, budget_bytes, pool)
    with planner_for(workload.gpus, workload.nodes) as planner:
        return planner.at(budget_bytes)


def _fewest(planner_for: Any, samples: int | None, nodes: int, budget_bytes: int, pool: Pool | None) -> Plan:
    """The plan for the fewest GPUs; all numbers share the workers."""
    from snugfit.planner.fewest import plan_for_fewest
    from snugfit.planner.probe import WORKERS
    from snugfit.workers.pool import Pool

    with contextlib.closing(Pool(WORKERS)) if pool is None else contextlib.nullcontext(pool) as workers:
        return plan_for_fewest(functools.partial(planner_for, workers=workers), samples, nodes, budget_bytes)
