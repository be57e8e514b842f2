"""One row of the strangers: foreign code trained by a plain loop, predicted, planned for less memory and trained by that.

    python -m benchmarks.stranger_row DIR        (reads `bytes NAME` or `plan NAME`, one a line, as `zoo_row`)

The plain loop is written here with torch alone, so that nothing of snugfit is in what it is held against.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import snugfit
from benchmarks.held_out import take_course
from benchmarks.stranger_cases.adopted import CASES, Adopted, Case
from benchmarks.stranger_cases.sources import put_on_path
from benchmarks.zoo_row import FOLDER, difference, one_line, or_the_smallest, serve
from snugfit.errors import SnugfitError
from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.private_torch import TorchDispatchMode
from snugfit.techniques.batches import map_tensors
from snugfit.values.read_values import ANSWER
from snugfit.workers.pool import Pool

STEPS = 12
MEASURED_STEPS = 2
"""Steps whose memory is measured: building, the first, and a steady one."""
BUDGET_SHARE = 0.6
"""Budget of the plan, as a share of what the plain loop takes."""
TOLERANCES = {"float64": 1e-9, "float32": 1e-4}
"""Largest difference of a loss or a weight that is still the order of operations, by the dtype of the runs compared."""


def measured(case: Case, pool: Pool) -> dict[str, Any]:
    """Measures the plain loop and predicts it.

    Args:
        case: What is trained.
        pool: Workers that simulate.

    Returns:
        `measured_bytes`, `predicted_bytes`, their `ratio`, and what was `answered` besides that numbers are finite; or
        `refused` with the error.
    """
    adopted = case.adopt()
    found: dict[str, Any] = {"kind": case.kind, "repository": case.repository, "lines": case.lines}
    found["own_loop"] = adopted.step is not None
    found["measured_bytes"] = plain_bytes(case)
    try:
        estimate = _estimate(adopted, pool)
    except SnugfitError as error:
        return {**found, "refused": one_line(error)}
    found |= {
        "predicted_bytes": estimate.peak_allocated_bytes,
        "answered": [FOLDER.sub("", one) for one in estimate.answered if one != ANSWER],
    }
    return {**found, "ratio": round(found["predicted_bytes"] / found["measured_bytes"], 6)}


@functools.cache
def plain_bytes(case: Case) -> int:
    """Returns the most bytes of tensors alive at a time in the plain loop.

    Args:
        case: What is trained.
    """
    return _measured(lambda built: plainly(case, MEASURED_STEPS, evaluate=True, built=built))


def planned(case: Case, pool: Pool) -> dict[str, Any]:
    """Plans for less memory, trains by the plan, and holds losses and weights against the plain loop's.

    Args:
        case: What is trained.
        pool: Workers that simulate.

    Returns:
        The plan, what it was predicted and measured to need, and how far its losses and weights are from the plain loop's;
        or `plan_refused` or `training_refused` with the error.
    """
    adopted = case.adopt()
    try:
        plan = or_the_smallest(partial(_plan, adopted, pool), int(BUDGET_SHARE * plain_bytes(case)))
    except SnugfitError as error:
        return {"plan_refused": one_line(error)}
    found: dict[str, Any] = {
        "plan_recipe": plan.recipe.to_mapping(defaults=False),
        "fidelity": plan.fidelity.level,
        "budget_bytes": plan.budget_bytes,
        "plan_predicted_bytes": plan.estimate.peak_allocated_bytes,
        "simulated": plan.simulated,
    }
    try:
        found["plan_measured_bytes"] = _measured(
            lambda built: by_plan(case, plan, MEASURED_STEPS, evaluate=True, built=built)
        )
        return {**found, **held_against_the_plain_loop(case, plan)}
    except SnugfitError as error:
        return {**found, "training_refused": one_line(error)}


def held_against_the_plain_loop(case: Case, plan: Any) -> dict[str, Any]:
    """Takes the same steps by a plan and plainly: in float64 where the foreign code can, or else by SGD in float32.

    Args:
        case: What is trained.
        plan: A plan or a recipe.

    Returns:
        `loss_difference` and `weight_difference`, the largest ones, as parts of the plain loop's; what they were
        `compared_in`, and the `tolerance` for that.
    """
    try:
        with numbers(torch.float64):
            found = _compared(case, plan, None)
            if max(found["loss_difference"], found["weight_difference"]) <= TOLERANCES["float64"] or not _rounds(case):
                return {**found, "compared_in": "float64", "tolerance": TOLERANCES["float64"]}
    except (RuntimeError, TypeError, ValueError) as error:  # the foreign code mixes the two
        if isinstance(error, SnugfitError):
            raise
    found = _compared(case, plan, "sgd")  # Adam's update makes noise as large as any gradient
    return {**found, "compared_in": "float32", "tolerance": TOLERANCES["float32"]}


def _compared(case: Case, plan: Any, optimizer: str | None) -> dict[str, float]:
    """How far losses and weights of the same steps are apart."""
    losses, weights = plainly(case, STEPS, optimizer)
    changed_losses, changed_weights = by_plan(case, plan, STEPS, optimizer)
    return {
        "loss_difference": max(map(difference, losses, changed_losses)),
        "weight_difference": max(
            (_apart(value, changed_weights[name]) for name, value in weights.items()), default=0.0
        ),
    }


class _Rounded(TorchDispatchMode):
    """Whether an operator gave less than float64."""

    seen = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for one in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(one, Tensor) and one.is_floating_point() and one.dtype != torch.float64:
                self.seen = True
        return found


def _rounds(case: Case) -> bool:
    """Whether a smaller dtype is written into the foreign code."""
    adopted = case.adopt()
    model, batch = adopted.model(), adopted.batch()
    with _Rounded() as mode:
        _loss(adopted, model, batch)
    return mode.seen


def plainly(
    case: Case,
    steps: int,
    optimizer: str | None = None,
    *,
    evaluate: bool = False,
    built: Callable[[], object] = lambda: None,
) -> tuple[list[float], dict[str, Any]]:
    """Trains by a loop of torch alone.

    Args:
        case: What is trained; adopted anew, since networks that a loss captured belong to what is measured.
        steps: How many.
        optimizer: Name of another optimizer; None: its own.
        evaluate: Whether a batch is evaluated after the first step, as an estimate has it.
        built: Called when the model stands.

    Returns:
        Losses, and the state at the end.
    """
    _seed(0)
    adopted = case.adopt()
    model = adopted.model()
    built()
    if adopted.step is not None:
        return _own_losses(adopted, model, steps), model.state_dict()
    update = _optimizer(adopted, model, optimizer)
    losses = []
    for number in range(steps):
        batch = _batch(adopted, number)
        loss = _loss(adopted, model, batch)
        loss.backward()
        update.step()
        update.zero_grad()
        if evaluate and number == 0:
            _evaluate(adopted, model, batch)
        losses.append(float(loss.detach()))
    return losses, model.state_dict()


def _own_losses(adopted: Adopted, model: nn.Module, steps: int) -> list[float]:
    """Trains by the foreign loop, with its own optimizers."""
    assert adopted.step is not None
    update = _optimizer(adopted, model, None)
    return [float(adopted.step(model, update, _batch(adopted, number))) for number in range(steps)]


def by_plan(
    case: Case,
    plan: Any,
    steps: int,
    optimizer: str | None = None,
    *,
    evaluate: bool = False,
    built: Callable[[], object] = lambda: None,
) -> tuple[list[float], dict[str, Any]]:
    """Trains by snugfit's trainer, or by its own loop with `snugfit.apply` in front: the lines of the README.

    Args:
        case: What is trained; adopted anew.
        plan: A plan or a recipe.
        steps: How many.
        optimizer: Name of another optimizer; None: its own.
        evaluate: Whether a batch is evaluated after the first step, as an estimate has it.
        built: Called when the model stands.

    Returns:
        Losses, and the state at the end.
    """
    _seed(0)
    adopted = case.adopt()
    model = adopted.model()
    built()
    if adopted.step is not None:
        with snugfit.apply(model, plan):
            return _own_losses(adopted, model, steps), model.state_dict()
    trainer = snugfit.prepare(model, plan, device="cpu", **_update(adopted, optimizer), **adopted.arguments())
    losses: list[float] = []
    take_course(
        trainer,
        lambda: _batch(adopted, trainer.steps_done),
        adopted.arguments(),
        steps=steps,
        evaluate=evaluate,
        on_loss=lambda loss: losses.append(float(loss)),
        unable=(RuntimeError,),
    )
    return losses, model.state_dict()


def _evaluate(adopted: Adopted, model: nn.Module, batch: Any) -> None:
    """Evaluates a batch of its own, where the code can; the one that was trained on is still there."""
    held_out = map_tensors(batch, Tensor.clone)
    model.eval()
    with torch.no_grad(), contextlib.suppress(RuntimeError):  # gradients are taken in forward
        _loss(adopted, model, held_out)
    model.train()


def _estimate(adopted: Adopted, pool: Pool) -> Any:
    given = {"device": "cpu", "assume": adopted.assume, "pool": pool}
    _seed(0)
    model, batch = adopted.model(), adopted.batch()
    if adopted.step is not None:
        return snugfit.estimate(
            model, batch, step=adopted.step, optimizer=_optimizer(adopted, model, None), steps=MEASURED_STEPS, **given
        )
    return snugfit.estimate(model, batch, **_update(adopted), **adopted.arguments(), **given)


def _plan(adopted: Adopted, pool: Pool, budget_bytes: int) -> Any:
    _seed(0)
    model, batch = adopted.model(), adopted.batch()
    given = {"device": "cpu", "assume": adopted.assume, "pool": pool, "budget": budget_bytes}
    if adopted.step is not None:
        own = {"step": adopted.step, "optimizer": _optimizer(adopted, model, None), "steps": MEASURED_STEPS}
        own |= {"pin": {"offload_activations": "all"}}  # these are so small that most plans would do nothing
        return snugfit.plan(model, batch, **own, **given)
    return snugfit.plan(model, batch, **_update(adopted), **adopted.arguments(), **given)


def _update(adopted: Adopted, optimizer: str | None = None) -> dict[str, Any]:
    """The arguments of snugfit that say how weights are updated."""
    chosen = optimizer or adopted.optimizer
    return {"optimizer": chosen, **({"lr": adopted.lr} if isinstance(chosen, str) else {})}


def _optimizer(adopted: Adopted, model: nn.Module, optimizer: str | None) -> Any:
    chosen = optimizer or adopted.optimizer
    if adopted.step is not None:
        return None if chosen is None else chosen(model)
    if not isinstance(chosen, str):
        return chosen(model.parameters())
    of_torch = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    # By a name snugfit takes the fused kernels, which hold no temporaries.
    parameters = list(model.parameters())
    fused = not any(one.is_complex() for one in parameters) and not any(
        getattr(one, "sparse", False) for one in model.modules()
    )
    return of_torch[chosen](parameters, lr=adopted.lr, fused=fused)


def _loss(adopted: Adopted, model: nn.Module, batch: Any) -> Tensor:
    if adopted.forward is not None:
        output = adopted.forward(model, batch)
    elif isinstance(batch, dict):
        output = model(**batch)
    else:
        output = model(batch[0] if isinstance(batch, tuple) else batch)
    return output if adopted.loss is None else adopted.loss(output, batch)


def _batch(adopted: Adopted, number: int) -> Any:
    """The batch of a step; the step finds the same random state in every run."""
    _seed(1 + number)
    batch = adopted.batch()
    _seed(1001 + number)
    return batch


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@contextlib.contextmanager
def numbers(dtype: torch.dtype) -> Iterator[None]:
    """Lets floating-point tensors be of a dtype where nobody says one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _measured(run: Callable[[Callable[[], object]], Any]) -> int:
    """Most bytes of tensors alive at a time in a run, from when its model stands: a model that is given is predicted so."""
    warm_up()
    events = AllocatorEvents()

    def built() -> None:
        events.cut()
        events.forget()

    events.start()
    run(built)
    events.stop()
    return events.recent_peak_bytes


def _apart(plain: Any, changed: Any) -> float:
    """How far what a state_dict holds is from plain training's, as a part of its largest number."""
    if not isinstance(plain, Tensor):  # neuraloperator notes its arguments there
        return 0.0 if plain == changed else math.inf
    if not plain.is_floating_point():
        return 0.0 if torch.equal(plain, changed) else math.inf
    off = float((plain - changed).abs().max()) if plain.numel() else 0.0
    return off / max(float(plain.abs().max()), 1e-3) if math.isfinite(off) else math.inf


def entered(name: str, sources: Path) -> Case:
    """Returns a case whose code this process can import.

    Args:
        name: Its name.
        sources: The folder of the foreign code.
    """
    put_on_path(CASES[name].repository, sources)
    return CASES[name]


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve()
    serve({"bytes": measured, "plan": planned}, {name: partial(entered, name, folder) for name in CASES})
