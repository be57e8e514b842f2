"""A hand-written `step(model, optimizer, batch)`, recorded as it is, "cuda" in it included."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from snugfit.errors import InputError
from snugfit.fake_device.personality import Personality
from snugfit.phases import phase
from snugfit.recipe import Recipe
from snugfit.recorder.materialise import Materialiser
from snugfit.recording.recording import Recording
from snugfit.simulator.session import CARD, STEPS, Session, switchable
from snugfit.techniques.own_optimizer import own_optimizer
from snugfit.techniques.quantize.apply import load_libraries
from snugfit.training.apply import apply
from snugfit.training.optimizers import OPTIMIZER_TABLE, make_optimizer, optimizer_groups, parameter_groups
from snugfit.training.step_optimizers import each_optimizer, made_of, map_optimizers
from snugfit.values.line_search import calls_until_full
from snugfit.workers.pool import Pool, shared_pool
from snugfit.workload import CUSTOM_OPTIMIZER, Workload, algorithm_and_storage
from snugfit.workloads.traits import model_traits

_HOST = torch.device("cpu")


def simulate_step(
    *request: Any,
    personality: Personality = CARD,
    batch_on: str = "device",
    steps: int = STEPS,
    pool: Pool | None = None,
) -> Recording:
    """Records a hand-written training step in a worker; arguments as `OwnStep`."""
    recording: Recording = (pool or shared_pool()).call(
        record_step, *request, {}, personality, on_host=batch_on == "host", steps=steps
    )
    return recording


def record_step(*request: Any, really: bool = False, **how: Any) -> Any:
    """Returns the recording of an `OwnStep`, or what a real try on the host came to; runs in a worker.

    `really`: whether it is tried for real in place of being recorded.
    """
    own = OwnStep(*request, **how)
    return own.tried() if really else own.whole()


class OwnStep(Session):
    """Calls of a person's own step, with a model on which `snugfit.apply` may have put techniques."""

    def __init__(
        self,
        step: Callable[[Any, Any, Any], Any],
        model: Any,
        optimizer: Any,
        batch: Any,
        settings: Mapping[str, Any],
        personality: Personality,
        *,
        on_host: bool,
        steps: int | None = None,
        recipe: Recipe | None = None,
    ) -> None:
        """Makes functions of optimizers by name; the step's own are made when the model stands on the device.

        `optimizer`: a name, a function from parameters to an optimizer, an optimizer, None; or a list, tuple or dict of
        such.
        `settings`: lr, weight_decay, betas, momentum, for an optimizer by name; and `assume`, an `Assumptions`.
        `steps`: how often it is called; None: twice, or once more than there are batches, or until LBFGS has its history.
        `batch`: what the step takes, or `Batches` of such; their tensors may be on any device, meta included.
        `recipe`: what `snugfit.apply` puts on the model first, each step then being in its context; None: nothing.
        """
        super().__init__(model, batch, personality, forward=None, assume=settings.get("assume"), steps=steps)
        self.step, self.recipe, self.steps_are_said = step, recipe, steps is not None
        self.place = _HOST if on_host else personality.device
        self.optimizer = map_optimizers(
            optimizer, lambda one: _optimizer_function(one, settings, self.model) if isinstance(one, str) else one
        )
        self.optimizers = [one for one in each_optimizer(self.optimizer) if isinstance(one, torch.optim.Optimizer)]
        self.applied: AbstractContextManager[Any] = contextlib.nullcontext()

    def whole(self) -> Recording:
        """Returns the recording, with what a recipe's fidelity is judged by."""
        facts: dict[str, Any] = {}
        if self.recipe is not None:
            traits = model_traits(self.model, None, None)
            facts["workload"] = Workload.from_mapping({**traits, "optimizer": CUSTOM_OPTIMIZER})
            facts["switchable"] = switchable(self.model)
        return dataclasses.replace(self.recorded(**facts), steps=self.steps)

    def load(self) -> None:
        """Imports the libraries of the recipe."""
        if self.recipe is not None:
            load_libraries(self.recipe)

    def known(self) -> tuple[Any, ...]:
        """Returns the state of optimizers that came as objects.

        Their parameters may be those of another model, which are captured like all that the step holds.
        """
        return ([list(one.state.values()) for one in self.optimizers],)

    def build(self, recorder: Any) -> None:
        """Puts the model on the device, and on the model what a recipe says."""
        device, fake = self.personality.device, Materialiser()
        packed = self.recipe is not None and self.recipe.quantize != "none"
        fake.module(self.model, _HOST if packed else device)  # what is packed goes there layer by layer
        recorder.watch(self.model)
        if self.recipe is not None:
            before = set(self.model.parameters())
            self.applied = apply(self.model, self.recipe, device=device)
            recorder.watch(self.model)
            if self.optimizers and not before >= set(self.model.parameters()):
                raise InputError(
                    "the recipe puts new weights beside the model's, and the optimizer that was given has only those of "
                    "before. Give a function from parameters to an optimizer, and in your loop make it after snugfit.apply."
                )
        self.model.to(device)  # buffers of a constructor that reads values are real, and still on the host
        for one in self.optimizers:
            fake.optimizer(one, device)

    def train(self, recorder: Any) -> None:
        """Calls the step."""
        made = made_of(self.optimizer, self.model.parameters)
        if not self.steps_are_said:  # only the optimizers say how long LBFGS takes to fill its history
            self.steps = max(self.steps, *map(calls_until_full, each_optimizer(made)), 0)
        for number in range(self.steps):
            recorder.step = number
            with phase("data"):  # made anew for each step, as a loader does
                given = Materialiser().tree(self.batches[number % len(self.batches)], self.place)
            with self.applied:
                self.step(self.model, made, given)
            del given

    def real_step(self) -> Callable[[Any], Any]:
        """Returns the person's step with the model and its optimizers."""
        made = made_of(self.optimizer, self.model.parameters)
        return lambda batch: self.step(self.model, made, batch)


def _optimizer_function(name: str, settings: Mapping[str, Any], model: torch.nn.Module) -> Callable[[Any], Any]:
    algorithm, storage = algorithm_and_storage(name)
    told = {field: value for field, value in settings.items() if field != "assume"}
    workload = Workload.from_mapping({**told, "optimizer": algorithm})
    own = own_optimizer(name)
    if own is not None:
        own.load()
        recipe = Recipe(optimizer=storage)  # type: ignore[arg-type]

        def make(parameters: Any) -> Any:
            weights = list(parameters)
            named = dict(model.named_parameters())
            groups = optimizer_groups(model, named, parameter_groups(weights, workload), recipe, workload)
            return make_optimizer(recipe, workload, groups, weights[0].device)

        return make
    row = OPTIMIZER_TABLE[name]
    given = {field: getattr(workload, field) for field in ("lr", "weight_decay", *row.settings)}
    given = {field: value for field, value in given.items() if value is not None}
    return lambda parameters: row.cls(parameters, **given)
