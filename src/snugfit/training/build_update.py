"""What updates the parameters under a recipe; built when the run begins, and anew where another recipe takes over."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from snugfit.errors import SnugfitWarning
from snugfit.recipe import Recipe
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.accumulate_dtype.apply import Fp32Sums
from snugfit.techniques.base import Setup
from snugfit.techniques.lost_updates import LostUpdates
from snugfit.techniques.offload_optimizer.apply import HostUpdate
from snugfit.techniques.own_optimizer import Groups, own_optimizer
from snugfit.techniques.parameter_update import JointUpdate, ParameterUpdate, Settings
from snugfit.techniques.stochastic_rounding.apply import RoundedUpdate
from snugfit.training.given_optimizer import GivenOptimizer
from snugfit.training.gradients import Gradients
from snugfit.training.health import Health
from snugfit.training.optimizers import make_optimizer, optimizer_groups, parameter_groups
from snugfit.training.update import Update


class UpdateBuilder:
    """Builds updates over the same parameters, without state yet."""

    def __init__(
        self,
        model: nn.Module,
        setup: Setup,
        named: dict[str, nn.Parameter],
        given: GivenOptimizer | None,
        *,
        sparse: bool,
    ) -> None:
        """Makes what all updates of a run share: loss scaling, random bits, the watcher of lost updates.

        Args:
            model: The model, with every technique in place.
            setup: The first recipe and where it trains.
            named: What training changes, by name.
            given: The caller's own optimizer, or None.
            sparse: Whether some gradients are sparse.
        """
        recipe, workload, device = setup.recipe, setup.workload, setup.device
        self._model, self._named, self._given, self._sparse = model, named, given, sparse
        self.setup = setup
        self.scaler = torch.amp.GradScaler(device.type) if recipe.precision == "16-mixed" else None
        self.generator = torch.Generator(device).manual_seed(workload.seed) if recipe.stochastic_rounding else None
        watched = recipe.true_precision is not None and not recipe.stochastic_rounding
        self._lost_updates = LostUpdates(list(named.values()), workload.warmup_steps + 3) if watched else None

    def __call__(self, recipe: Recipe) -> Update:
        """Builds the update of a recipe.

        Args:
            recipe: The run's, or another one that may follow it.
        """
        setup = dataclasses.replace(self.setup, recipe=recipe)
        others = self._given.others(self._named) if self._given is not None else {}
        gradients = Gradients({**self._named, **others}, _fp32_sums(recipe, list(self._named.values())), setup.workload)
        gradients.drop()
        updates, groups = self._updates(setup)
        return Update(
            updates,
            groups,
            gradients,
            Health(setup.device, recipe.precision, in_backward=recipe.step_in_backward),
            setup.pool,
            scaler=self.scaler,
            lost_updates=self._lost_updates,
            in_backward=recipe.step_in_backward,
        )

    def _updates(self, setup: Setup) -> tuple[list[Any], Groups]:
        recipe, given = setup.recipe, self._given
        each = any(getattr(recipe, row.name) for row in TECHNIQUES if row.per_parameter)
        if given is not None and recipe.optimizer is None and not each:
            return [JointUpdate(given.optimizer)], given.optimizer.param_groups
        own = own_optimizer(recipe.optimizer)
        if own is not None:
            own.announce(setup.device)
        base = parameter_groups(self._named.values(), setup.workload) if given is None else given.groups(recipe)
        groups = optimizer_groups(self._model, base, recipe, setup.workload)
        if given is not None:
            given.tell(recipe)
        if not each:
            made = make_optimizer(recipe, setup.workload, groups, setup.device, sparse=self._sparse)
            return [JointUpdate(made)], groups
        updates = []
        for group in groups:
            settings = {name: value for name, value in group.items() if name != "params"}
            updates += [self._of_one(setup, weight, settings) for weight in group["params"]]
        earlier = given.optimizer.state if given is not None else {}
        for update in updates:
            if update.weight in earlier:
                update.load_state(earlier[update.weight])
        return updates, groups

    def _of_one(self, setup: Setup, weight: nn.Parameter, settings: Settings) -> ParameterUpdate:
        make = functools.partial(self._alone, setup, settings)
        if setup.recipe.offload_optimizer:
            return HostUpdate(weight, make, setup.pool, setup.copies)
        if self.generator is not None:
            return RoundedUpdate(weight, make, self.generator)
        return ParameterUpdate(weight, make)

    def _alone(self, setup: Setup, settings: Settings, owned: nn.Parameter) -> Optimizer:
        if self._given is not None and setup.recipe.optimizer is None:
            return self._given.alone(settings, owned)
        return make_optimizer(setup.recipe, setup.workload, [{**settings, "params": [owned]}], owned.device)


def _fp32_sums(recipe: Recipe, weights: list[nn.Parameter]) -> Fp32Sums | None:
    if recipe.accumulate_dtype != "fp32":
        return None
    halves = any(weight.dtype in (torch.float16, torch.bfloat16) for weight in weights)
    if recipe.microbatch_size is None or not halves:
        reason = "there are no microbatches" if recipe.microbatch_size is None else "no weight is held in 16 bits"
        warnings.warn(f"accumulate_dtype='fp32' has no effect: {reason}.", SnugfitWarning, stacklevel=4)
        return None
    return Fp32Sums(weights)
