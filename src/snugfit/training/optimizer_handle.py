"""The optimizer as its owner holds it: `trainer.optimizer`, or the instance that was given.

Learning-rate schedulers and people write to an optimizer's parameter groups. Where that optimizer is the one that updates,
nothing has to be done. Where a recipe updates by another one (low-bit state, another algorithm) than was given, the owner's
object stays the handle: what changed in its groups is passed on when a step begins, its `state_dict` is that of what really
updates, and `load_state_dict` loads it there. Its `state` is empty then, so nothing is held twice.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from snugfit.techniques.parameter_update import Settings

if TYPE_CHECKING:
    from snugfit.training.update import Update

_OF_THE_KERNELS = ("params", "initial_lr", "foreach", "fused", "capturable", "differentiable")
"""Keys of a group that are no settings of the algorithm."""


class OptimizerHandle:
    """Keeps the caller's optimizer and the one that really updates in agreement."""

    def __init__(self, optimizer: Optimizer, update: Update) -> None:
        """Takes the caller's object, and the update that it may stand for."""
        self.optimizer = optimizer
        self.update = update
        self._links: list[tuple[int, int]] = []
        self._passed: list[Settings] = []
        if update.optimizer is optimizer:
            return
        optimizer.state.clear()
        self.link()
        self.follow()
        mine = weakref.ref(self)  # the object must not keep the update alive when the trainer is gone

        def read(_: Optimizer, state: dict[str, Any]) -> dict[str, Any] | None:
            handle = mine()
            return None if handle is None else handle._read()

        def loaded(_: Optimizer, state: dict[str, Any]) -> dict[str, Any] | None:
            handle = mine()
            return None if handle is None else handle._loaded(state)

        optimizer.register_state_dict_post_hook(read)
        optimizer.register_load_state_dict_pre_hook(loaded)

    def link(self) -> None:
        """Finds, for each updating group, the group of the caller that it follows; all settings are copied once more."""
        groups = self.update.optimizer.param_groups
        if self.update.optimizer is self.optimizer:
            return
        number_of = {
            weight: number for number, group in enumerate(self.optimizer.param_groups) for weight in group["params"]
        }
        followers = [(number_of.get(next(iter(group["params"]), None)), at) for at, group in enumerate(groups)]
        self._links = [(number, at) for number, at in followers if number is not None]
        self._passed = [{} for _ in self._links]

    def follow(self) -> None:
        """Copies settings the other way, after a state was loaded into what updates."""
        for number, at in self._links:
            _share(self.update.optimizer.param_groups[at], self.optimizer.param_groups[number])
        self._passed = [self._settings(number) for number, _ in self._links]

    def pass_on(self) -> None:
        """Copies what the caller has changed since the last call."""
        for link, (number, at) in enumerate(self._links):
            settings = self._settings(number)
            if settings != self._passed[link]:
                _share(settings, self.update.optimizer.param_groups[at])
                self._passed[link] = settings

    def stepped(self) -> None:
        """Counts the update on the caller's object, where schedulers look for it."""
        if self._links:
            vars(self.optimizer)["_opt_called"] = True  # what torch's schedulers set in a wrapped `step`

    def _settings(self, number: int) -> Settings:
        group = self.optimizer.param_groups[number]
        return {name: value for name, value in group.items() if name not in _OF_THE_KERNELS}

    def _read(self) -> dict[str, Any]:
        self.pass_on()
        state: dict[str, Any] = self.update.optimizer.state_dict()
        return state

    def _loaded(self, state: dict[str, Any]) -> dict[str, Any]:
        """Loads a state into what updates; the caller's object gets the groups alone, with numbers as parameters."""
        self.update.load_state_dict(state)
        self.follow()
        number = itertools.count()
        groups = [{**group, "params": [next(number) for _ in group["params"]]} for group in self.optimizer.param_groups]
        return {"state": {}, "param_groups": groups}


def _share(source: Settings, target: Settings) -> None:
    """Copies the settings that both groups have."""
    target.update({name: source[name] for name in source if name in target and name not in _OF_THE_KERNELS})
