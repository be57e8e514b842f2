"""The optimizer as its owner holds it: `trainer.optimizer`, or the instance that was given.

Learning-rate schedulers and people write to an optimizer's parameter groups. Where that optimizer is the one that updates,
nothing has to be done. Where a recipe updates by others (one a parameter, low-bit state, another one after memory ran
out), the owner's object stays the handle: what changed in its groups is passed on when a step begins, its `state_dict` is
that of what really updates, and `load_state_dict` loads it there. Its `state` is empty then, so nothing is held twice.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from snugfit.training.update import Update

_OF_THE_KERNELS = ("params", "initial_lr", "foreach", "fused", "capturable", "differentiable")
"""Keys of a group that are no settings of the algorithm."""
Settings = dict[str, Any]


class Updates(Protocol):
    """What a handle asks of an update."""

    def owned(self) -> list[tuple[list[nn.Parameter], Settings]]:
        """Returns each group that the update goes by, with its parameters."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of one ordinary optimizer."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads it."""


class Handle(Optimizer):
    """Stands for an optimizer that is not there as one object: its groups are read, and it never steps."""

    def __init__(self, groups: list[Settings], defaults: Settings) -> None:
        """Takes the groups.

        Args:
            groups: Parameter groups with all settings.
            defaults: Settings of the first, which some schedulers look at.
        """
        super().__init__(groups, defaults)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Does nothing, as any optimizer without gradients: `trainer.step` updates."""


class OptimizerHandle:
    """Keeps an owner's optimizer and what really updates in step."""

    def __init__(self, optimizer: Optimizer) -> None:
        """Takes the owner's object.

        Args:
            optimizer: The one that updates, or one that stands for it.
        """
        self.optimizer = optimizer
        self._update: Updates | None = None
        self._links: list[tuple[int, list[Settings]]] = []
        self._passed: list[Settings] = []
        self._apart = False
        mine = weakref.ref(self)  # the object must not keep the update alive when the trainer is gone

        def read(_: Optimizer, state: dict[str, Any]) -> dict[str, Any] | None:
            handle = mine()
            return None if handle is None else handle._read()

        def loaded(_: Optimizer, state: dict[str, Any]) -> dict[str, Any] | None:
            handle = mine()
            return None if handle is None else handle._loaded(state)

        optimizer.register_state_dict_post_hook(read)
        optimizer.register_load_state_dict_pre_hook(loaded)

    def serve(self, update: Updates) -> None:
        """Stands for an update from now on; called again when its groups were replaced.

        Args:
            update: What updates.
        """
        self._update, self._links, self._passed = update, [], []
        if getattr(update, "optimizer", None) is self.optimizer:
            return
        self.optimizer.state.clear()
        groups = self.optimizer.param_groups
        number_of = {weight: number for number, group in enumerate(groups) for weight in group["params"]}
        links: dict[int, list[Settings]] = {}
        for weights, group in update.owned():
            if weights and weights[0] in number_of:
                links.setdefault(number_of[weights[0]], []).append(group)
        self._links = list(links.items())
        for number, followers in self._links:  # what was loaded into the update holds for the handle
            groups[number].update({name: followers[0][name] for name in _shared(groups[number], followers[0])})
        self._passed = [self._settings(number) for number, _ in self._links]

    def pass_on(self) -> None:
        """Passes on what the owner has changed since the last call; nothing where nothing did."""
        for at, (number, followers) in enumerate(self._links):
            settings = self._settings(number)
            if settings != self._passed[at]:
                for group in followers:
                    group.update({name: settings[name] for name in _shared(settings, group)})
                self._passed[at] = settings

    def stepped(self) -> None:
        """Tells schedulers that an update was taken, which they look for on the object they know."""
        if self._links:
            vars(self.optimizer)["_opt_called"] = True  # what torch's schedulers set in a wrapped `step`

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Context in which the object is read and loaded as itself: an update's state moves from one kind to another."""
        self._apart = True
        try:
            yield
        except BaseException:
            if self._links:
                self.optimizer.state.clear()
            raise
        finally:
            self._apart = False

    def _settings(self, number: int) -> Settings:
        group = self.optimizer.param_groups[number]
        return {name: value for name, value in group.items() if name not in _OF_THE_KERNELS}

    def _read(self) -> dict[str, Any] | None:
        if not self._links or self._update is None or self._apart:
            return None
        self.pass_on()
        return self._update.state_dict()

    def _loaded(self, state: dict[str, Any]) -> dict[str, Any] | None:
        if not self._links or self._update is None or self._apart:
            return None
        update = self._update
        update.load_state_dict(state)
        self.serve(update)
        return {"state": {}, "param_groups": _packed(self.optimizer.param_groups)}


def handle_of(update: Update) -> Handle:
    """Returns an object to hold for an update that has one optimizer a parameter.

    Args:
        update: What updates; its groups and settings are taken over.
    """
    groups = update.ordinary_groups
    owned = {weights[0]: group for weights, group in update.owned() if weights}
    settings = [
        {name: value for name, value in owned[group["params"][0]].items() if name not in _OF_THE_KERNELS}
        for group in groups
    ]
    made = [{**own, "params": list(group["params"])} for own, group in zip(settings, groups, strict=True)]
    return Handle(made, settings[0])


def _shared(one: Settings, other: Settings) -> list[str]:
    return [name for name in one if name in other and name not in _OF_THE_KERNELS]


def _packed(groups: list[Settings]) -> list[Settings]:
    """Groups as a state_dict has them: numbers in place of parameters."""
    packed, count = [], 0
    for group in groups:
        size = len(group["params"])
        packed.append({**group, "params": list(range(count, count + size))})
        count += size
    return packed
