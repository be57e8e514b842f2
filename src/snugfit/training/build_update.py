"""What updates the parameters: one optimizer for the whole run, and the parts in which each recipe takes it."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn
from torch.optim import Optimizer

from snugfit.errors import warn
from snugfit.recipe import Recipe
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.base import Setup
from snugfit.techniques.declaration import loaded
from snugfit.techniques.lost_updates import LostUpdates
from snugfit.techniques.own_optimizer import own_optimizer
from snugfit.techniques.parameter_update import JointUpdate, ParameterUpdate
from snugfit.training import optimizers
from snugfit.training.given_optimizer import GivenOptimizer
from snugfit.training.gradients import Gradients
from snugfit.training.health import Health
from snugfit.training.update import Update


@dataclasses.dataclass(eq=False, repr=False)
class UpdateBuilder:
    """Builds updates over the same parameters, and what they share: optimizer, loss scaling, the watcher of lost updates."""

    model: nn.Module
    """The model, with every technique in place."""
    setup: Setup
    """The first recipe and where it trains."""
    named: dict[str, nn.Parameter]
    """What training changes, by name."""
    given: GivenOptimizer | None
    """The caller's own optimizer, or None."""
    sparse: bool
    """Whether some gradients are sparse."""

    def __post_init__(self) -> None:
        recipe, workload, given = self.setup.recipe, self.setup.workload, self.given
        self.scaler = torch.amp.GradScaler(self.setup.device.type) if recipe.precision == "16-mixed" else None
        watched = recipe.true_precision is not None and not recipe.stochastic_rounding
        self._lost_updates = LostUpdates(list(self.named.values()), workload.warmup_steps + 3) if watched else None
        self._made = given is None or recipe.optimizer is not None
        self.optimizer = given.optimizer if given is not None and not self._made else self._new_optimizer()

    def _new_optimizer(self) -> Optimizer:
        recipe, workload, device = self.setup.recipe, self.setup.workload, self.setup.device
        own = own_optimizer(recipe.optimizer)
        if own is not None:
            own.announce(device)
        given = self.given
        base = optimizers.parameter_groups(self.named.values(), workload) if given is None else given.groups(recipe)
        groups = optimizers.optimizer_groups(self.model, self.named, base, recipe, workload)
        if given is not None:
            given.tell(recipe)
        return optimizers.make_optimizer(
            recipe, workload, groups, optimizers.device_of_update(self.setup), sparse=self.sparse
        )

    def __call__(self, recipe: Recipe) -> Update:
        """Builds the update of a recipe.

        Args:
            recipe: The run's, or another one that may follow it.
        """
        setup = dataclasses.replace(self.setup, recipe=recipe)
        others = self.given.others(self.named) if self.given is not None else {}
        summed = _summed_in_fp32(recipe, list(self.named.values()))
        gradients = Gradients({**self.named, **others}, setup.workload, summed=summed, ranks=setup.ranks)
        gradients.drop()
        if self._made and not self.sparse:
            optimizers.choose_kernels(self.optimizer, setup)
        return Update(
            self.optimizer,
            self._parts(setup),
            gradients,
            Health(setup.device, recipe.precision, in_backward=recipe.step_in_backward),
            setup.pool,
            scaler=self.scaler,
            lost_updates=self._lost_updates,
            in_backward=recipe.step_in_backward,
        )

    def _parts(self, setup: Setup) -> list[JointUpdate]:
        each = [row for row in TECHNIQUES if row.per_parameter and getattr(setup.recipe, row.name)]
        if not each:
            return [JointUpdate(self.optimizer)]
        cls = next((loaded(row.updated_by) for row in each if row.updated_by), ParameterUpdate)
        return [
            cls(self.optimizer, weight, number, setup)
            for number, group in enumerate(self.optimizer.param_groups)
            for weight in group["params"]
            if weight.requires_grad
        ]


def _summed_in_fp32(recipe: Recipe, weights: list[nn.Parameter]) -> list[nn.Parameter]:
    if recipe.accumulate_dtype != "fp32":
        return []
    halves = [weight for weight in weights if weight.dtype in (torch.float16, torch.bfloat16)]
    if recipe.microbatch_size is not None and halves:
        return halves
    reason = "there are no microbatches" if recipe.microbatch_size is None else "no weight is held in 16 bits"
    warn(f"accumulate_dtype='fp32' has no effect: {reason}.")
    return []
