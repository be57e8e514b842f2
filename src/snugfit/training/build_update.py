"""What updates the parameters: one optimizer for the whole run, and the parts in which each recipe takes it.

What is trained may change between two steps, as in a plain loop: parameters are frozen and unfrozen, groups get others. By
name the optimizer follows the model, as one over `model.parameters()` would; one that was given is its owner's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim import Optimizer

from snugfit.errors import InputError, warn
from snugfit.recipe import Recipe
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.base import Setup
from snugfit.techniques.declaration import loaded
from snugfit.techniques.lost_updates import LostUpdates
from snugfit.techniques.own_optimizer import STORAGE, Groups, own_optimizer, parted_groups
from snugfit.techniques.parameter_update import JointUpdate, ParameterUpdate
from snugfit.training import optimizers
from snugfit.training.given_optimizer import GivenOptimizer
from snugfit.training.gradients import Gradients
from snugfit.training.health import Health
from snugfit.training.update import Update

if TYPE_CHECKING:
    from snugfit.techniques.shard.reducer import Reducer


@dataclasses.dataclass(eq=False, repr=False)
class UpdateBuilder:
    """Builds updates over the same parameters, with what they share: optimizer, loss scaling, watcher of lost updates."""

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
    reducer: Reducer | None = None
    """Gives parameters the gradients that several processes have together; None: this one is alone."""

    def __post_init__(self) -> None:
        recipe, workload, given = self.setup.recipe, self.setup.workload, self.given
        self.scaler = torch.amp.GradScaler(self.setup.device.type) if recipe.precision == "16-mixed" else None
        watched = recipe.true_precision is not None and not recipe.stochastic_rounding
        self._lost_updates = LostUpdates(list(self.named.values()), workload.warmup_steps + 3) if watched else None
        self._made = given is None or recipe.optimizer is not None
        self.optimizer = given.optimizer if given is not None and not self._made else self._new_optimizer()
        self._look()

    def _new_optimizer(self) -> Optimizer:
        recipe, workload, device = self.setup.recipe, self.setup.workload, self.setup.device
        own = own_optimizer(recipe.optimizer)
        if own is not None:
            own.announce(device)
        groups = self._new_groups()
        if self.given is not None:
            self.given.tell(recipe)
        return optimizers.make_optimizer(
            recipe, workload, groups, optimizers.device_of_update(self.setup), sparse=self.sparse
        )

    def _new_groups(self) -> Groups:
        """The parameter groups that a new optimizer would get now."""
        recipe, workload, given = self.setup.recipe, self.setup.workload, self.given
        base = optimizers.parameter_groups(self.named.values(), workload) if given is None else given.groups(recipe)
        return optimizers.optimizer_groups(self.model, self.named, base, recipe, workload)

    @property
    def owners(self) -> Optimizer:
        """The optimizer that the caller sees: the one given, or the one that was made."""
        return self.optimizer if self.given is None else self.given.optimizer

    def _look(self) -> None:
        """Notes what is trained now."""
        inside = [weight for group in self.owners.param_groups for weight in group["params"]]
        self._all = list(dict.fromkeys([*self.model.parameters(), *inside]))
        self._trained = self._present()

    def _present(self) -> tuple[list[bool], list[list[int]]]:
        flags = [weight.requires_grad for weight in self._all]
        return flags, [list(map(id, group["params"])) for group in self.owners.param_groups]

    @property
    def outdated(self) -> bool:
        """Whether parameters were frozen, unfrozen or moved between groups since the last update was built."""
        return self._present() != self._trained

    def follow(self) -> None:
        """Adopts the parameters trained now; `InputError` where the optimizer has no group for an unfrozen one."""
        if self.setup.ranks is not None:
            raise InputError(
                "parameters were frozen, unfrozen or put into other groups after the processes had shared them out. Do "
                "that before snugfit.prepare, or prepare the model once more."
            )
        frozen = {id(weight) for weight, trained in zip(self._all, self._trained[0], strict=True) if not trained}
        named = optimizers.trained_parameters(self.model)
        if self.given is not None:
            self.given.check_unfrozen({name: weight for name, weight in named.items() if id(weight) in frozen})
        self.named = named
        if self._made:
            self._join()
        self._look()

    def _join(self) -> None:
        """Puts trained parameters that are in no group into those where a new optimizer would have them."""
        groups, places = self.optimizer.param_groups, {weight: at for at, weight in enumerate(self._all)}
        self._mark(groups)
        if self.given is not None:  # what its owner has taken out
            kept = {id(weight) for group in self.owners.param_groups for weight in group["params"]}
            for group in groups:
                for weight in [one for one in group["params"] if id(one) not in kept]:
                    self.optimizer.state.pop(weight, None)
                group["params"] = [weight for weight in group["params"] if id(weight) in kept]
        home = {weight: group for group in groups for weight in group["params"]}
        for group in self._new_groups():
            missing = [weight for weight in group["params"] if weight not in home]
            if not missing:
                continue
            target = next((home[weight] for weight in group["params"] if weight in home), None)
            if target is None:
                self.optimizer.add_param_group({**group, "params": missing})
            else:  # in the model's order, so that a saved state fits a run that is prepared anew
                target["params"] = sorted(
                    [*target["params"], *missing], key=lambda weight: places.get(weight, len(places))
                )

    def _mark(self, groups: Groups) -> None:
        """Marks groups that were added by hand, as an optimizer with its own kind of state reads them."""
        own = own_optimizer(self.setup.recipe.optimizer or self.setup.workload.optimizer)
        if own is None or STORAGE not in groups[0]:
            return
        parting = own.parted(self.model)
        for group in [group for group in groups if STORAGE not in group]:
            groups[:] = [one for one in groups if one is not group]
            marked = {**group, STORAGE: groups[0][STORAGE]}
            for one in [marked] if parting is None else parted_groups([marked], parting):
                self.optimizer.add_param_group(one)

    def __call__(self, recipe: Recipe, kept: Sequence[JointUpdate] = ()) -> Update:
        """Builds the update of a recipe: the first one of the run, or one to go on with.

        `kept`: parts of an update by the same recipe, of which those that still fit are used again.
        """
        setup = dataclasses.replace(self.setup, recipe=recipe)
        named = {**self.named, **_others(self.owners, self.named)}
        summed = _summed_in_fp32(recipe, list(named.values()))
        gradients = Gradients(named, setup.workload, summed=summed, ranks=setup.ranks, reducer=self.reducer)
        gradients.drop()
        if self._made and not self.sparse:
            optimizers.choose_kernels(self.optimizer, setup)
        return Update(
            self.optimizer,
            self._parts(setup, kept),
            gradients,
            Health(setup.device, recipe.precision, in_backward=recipe.step_in_backward),
            setup.pool,
            scaler=self.scaler,
            lost_updates=self._lost_updates,
            in_backward=recipe.step_in_backward,
        )

    def _parts(self, setup: Setup, kept: Sequence[JointUpdate]) -> list[JointUpdate]:
        each = [loaded(row.updated_by) for row in TECHNIQUES if row.updated_by and getattr(setup.recipe, row.name)]
        if not each:
            return [JointUpdate(self.optimizer)]
        cls = next((kind for kind in each if kind is not ParameterUpdate), ParameterUpdate)
        there = {(*part.weights, part.number): part for part in kept if isinstance(part, ParameterUpdate)}
        return [
            there.get((*weights, number)) or cls(self.optimizer, weights, number, setup)
            for number, group in enumerate(self.optimizer.param_groups)
            for weights in cls.together([one for one in group["params"] if one.requires_grad], group, setup)
        ]


def _others(optimizer: Optimizer, named: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Parameters of the optimizer that are not the model's trained ones: a learned part of the loss, frozen ones."""
    known = {id(weight) for weight in named.values()}
    return {
        f"optimizer.param_groups[{number}]['params'][{at}]": weight
        for number, group in enumerate(optimizer.param_groups)
        for at, weight in enumerate(group["params"])
        if id(weight) not in known
    }


def _summed_in_fp32(recipe: Recipe, weights: list[nn.Parameter]) -> list[nn.Parameter]:
    if recipe.accumulate_dtype != "fp32":
        return []
    halves = [weight for weight in weights if weight.requires_grad and weight.dtype in (torch.float16, torch.bfloat16)]
    if recipe.microbatch_size is not None and halves:
        return halves
    reason = "there are no microbatches" if recipe.microbatch_size is None else "no weight is held in 16 bits"
    warn(f"accumulate_dtype='fp32' has no effect: {reason}.")
    return []
