"""Another recipe in the middle of a run: what it changes is rebuilt in place, and the rest stays as it is.

What changes the passes is taken off and put on anew, in the order of `prepare`; an update is built beside the old one, takes
over its state (all kinds of updates have the same) and takes its place. When something of that fails, the old recipe is
still whole. Which fields may change is said in `changeable.py`.

A model that is prepared a second time is taken over: what the first recipe put on it is taken off, and its trainer retires.
What cannot be undone stays: the dtype and device of the weights.
"""

from __future__ import annotations

import dataclasses
import warnings
import weakref
from typing import TYPE_CHECKING, Protocol

from torch import nn
from torch.optim import Optimizer

from snugfit.errors import SnugfitWarning, about
from snugfit.recipe import Recipe
from snugfit.techniques.base import ModelTechnique, model_techniques, take_off
from snugfit.training.build_update import UpdateBuilder
from snugfit.training.changeable import PASS_FIELDS, UPDATE_FIELDS
from snugfit.training.optimizer_handle import OptimizerHandle

if TYPE_CHECKING:
    from snugfit.training.trainer import Trainer


class Rebuild:
    """Builds the update of the first recipe, and later puts another recipe in place on the prepared model."""

    def __init__(self, model: nn.Module, builder: UpdateBuilder, given: Optimizer | None) -> None:
        """Builds the first update; `given` is the caller's own optimizer, or None.

        `builder`: builds updates; its setup has the first recipe, and the pool and the streams of all.
        """
        self._model, self._builder = model, builder
        self.setup = builder.setup
        self.update = builder(self.setup.recipe)
        """The update in place."""
        self.handle = OptimizerHandle(given or builder.optimizer, self.update)
        """The owner's optimizer, which stays the same."""

    def __call__(self, old: Recipe, new: Recipe, techniques: list[ModelTechnique]) -> list[ModelTechnique]:
        """Replaces a recipe between two judged steps; returns the techniques in place. On failure the old one stays."""
        wraps = any(getattr(old, name) != getattr(new, name) for name in PASS_FIELDS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SnugfitWarning)  # said when the run began
            try:
                wrapped = self._rewrapped(techniques, new, before=old) if wraps else techniques
                if needs_new_update(old, new):
                    self._build_update(new)
                return wrapped
            except BaseException:
                if wraps:
                    techniques[:] = self._rewrapped(techniques, old, before=new)
                raise

    def _rewrapped(self, techniques: list[ModelTechnique], recipe: Recipe, *, before: Recipe) -> list[ModelTechnique]:
        """Puts the techniques of a recipe on the model, whichever are on it, or on part of it."""
        setup = dataclasses.replace(self.setup, recipe=recipe)
        again = [technique for technique in model_techniques() if technique.comes_off(before, recipe)]
        take_off(self._model, again)
        changed = [one(setup) for one in again if one.wanted(recipe)]
        for technique in changed:
            with about(technique.field):
                technique.change(self._model)
        return [*(one for one in techniques if not isinstance(one, tuple(again))), *changed]

    def _build_update(self, recipe: Recipe) -> None:
        self.handle.pass_on()
        optimizer = self._builder.optimizer
        # Copies of dicts, not of tensors: enough to go back to, while the new parts move or pack the state elsewhere.
        groups = [dict(group) for group in optimizer.param_groups]
        states = {weight: dict(state) for weight, state in optimizer.state.items()}
        update = None
        try:
            update = self._builder(recipe)
            # It puts all of the state where the new parts want it.
            update.load_state_dict(self.update.optimizer.state_dict())
        except BaseException:
            if update is not None:
                update.release()
            optimizer.param_groups = groups
            optimizer.state.clear()
            optimizer.state.update(states)
            raise
        self.update.release()
        self.update = self.handle.update = update

    @property
    def by_name(self) -> bool:
        """Whether the optimizer was asked for by name, and so was made of the model's parameters."""
        return self._builder.given is None

    @property
    def outdated(self) -> bool:
        """Whether other parameters are trained than when the update was built."""
        return self._builder.outdated

    def follow(self, recipe: Recipe) -> None:
        """Builds the update anew for what is trained now, between two judged steps."""
        self.update.gradients.drop()
        self._builder.follow()
        update = self._builder(recipe, self.update.parts)
        self.release()
        self.update = self.handle.update = update
        self.handle.link()

    def release(self) -> None:
        """Takes all hooks off the parameters."""
        self.update.release()
        if self._builder.reducer is not None:
            self._builder.reducer.release()


def needs_new_update(old: Recipe, new: Recipe) -> bool:
    """Returns whether another recipe needs another update."""

    def sums(recipe: Recipe) -> bool:
        return recipe.accumulate_dtype == "fp32" and recipe.microbatch_size is not None

    same = all(getattr(old, name) == getattr(new, name) for name in UPDATE_FIELDS if name != "accumulate_dtype")
    return not same or sums(old) != sums(new)


class _Owner(Protocol):
    def give_up_model(self) -> None: ...


_owners: weakref.WeakKeyDictionary[nn.Module, weakref.ref[_Owner]] = weakref.WeakKeyDictionary()


def remember_owner(model: nn.Module, owner: _Owner) -> None:
    """Records who has put techniques on a model (a trainer, an `Applied`), to be told when another takes it over."""
    _owners[model] = weakref.ref(owner)


def remember_trainer(model: nn.Module, trainer: Trainer, rebuild: Rebuild) -> None:
    """Records who trains a model; hooks go when the trainer is garbage. `rebuild` must not refer to the trainer."""
    remember_owner(model, trainer)
    weakref.finalize(trainer, rebuild.release).atexit = False


def trained_by_others(model: nn.Module) -> list[nn.Parameter]:
    """Returns the parameters of all other prepared models whose trainers are alive."""
    others = [one for one, trainer in list(_owners.items()) if one is not model and trainer() is not None]
    return [weight for other in others for weight in other.parameters()]


def take_over(model: nn.Module) -> None:
    """Takes off a model (or a copy of one) all that an earlier `prepare` or `apply` has put on it."""
    for module in model.modules():
        earlier = _owners.pop(module, lambda: None)()
        if earlier is not None:
            earlier.give_up_model()
    take_off(model, model_techniques())
