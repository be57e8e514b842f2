"""Another recipe in the middle of a run: what it changes is rebuilt in place, and the rest stays as it is.

What changes the passes is taken off and put on anew, in the order of `prepare`; an update is built beside the old one, takes
over its state (all kinds of updates have the same) and takes its place. When something of that fails, the old recipe is
still whole. Which fields may change is said in `changeable.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from torch import nn

from snugfit.errors import SnugfitWarning, about
from snugfit.recipe import Recipe
from snugfit.techniques.base import ModelTechnique, Setup, model_techniques
from snugfit.training.changeable import PASS_FIELDS, UPDATE_FIELDS
from snugfit.training.take_over import unwrap

if TYPE_CHECKING:
    from snugfit.training.health import Health
    from snugfit.training.optimizer_handle import OptimizerHandle
    from snugfit.training.per_parameter import PerParameterUpdate
    from snugfit.training.update import WholeUpdate

    Update: TypeAlias = WholeUpdate | PerParameterUpdate
    Rebuilt = tuple[list[ModelTechnique], Update, Health]


class Rebuild:
    """Puts another recipe in place on a prepared model."""

    def __init__(
        self,
        model: nn.Module,
        handle: OptimizerHandle,
        setup_of: Callable[[Recipe], Setup],
        update_of: Callable[[Setup], tuple[Update, Health]],
    ) -> None:
        """Takes what `prepare` built the first recipe with.

        Args:
            model: The prepared model.
            handle: The owner's optimizer, which stays the same.
            setup_of: Gives the setup of a recipe, with the pool and the streams of the first.
            update_of: Builds an update, without state, and its judge.
        """
        self._model, self._handle, self._setup_of, self._update_of = model, handle, setup_of, update_of

    def __call__(
        self, old: Recipe, new: Recipe, techniques: list[ModelTechnique], update: Update, health: Health
    ) -> Rebuilt:
        """Puts a recipe in place of another.

        Args:
            old: The recipe in place.
            new: The recipe to come.
            techniques: Those in place.
            update: The update in place, between two steps.
            health: Its judge, which waits for nothing.

        Returns:
            What is in place now; the old update still has its hooks where another one is returned.

        Raises:
            InputError: The new recipe cannot be carried out; the old one is in place.
            RuntimeError: There is no memory for the new one; the old one is in place.
        """
        setup = self._setup_of(new)
        wraps = any(getattr(old, name) != getattr(new, name) for name in PASS_FIELDS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SnugfitWarning)  # said when the run began
            try:
                wrapped = rewrapped(self._model, techniques, setup, before=old) if wraps else techniques
                if not needs_new_update(old, new):
                    return wrapped, update, health
                return (wrapped, *self._with_state(setup, update))
            except BaseException:
                if wraps:
                    techniques[:] = rewrapped(self._model, techniques, self._setup_of(old), before=new)
                raise

    def _with_state(self, setup: Setup, old: Update) -> tuple[Update, Health]:
        self._handle.pass_on()
        update, health = self._update_of(setup)
        try:
            with self._handle.apart():
                update.load_state_dict(old.state_dict())
        except BaseException:
            update.release()
            raise
        return update, health


def needs_new_update(old: Recipe, new: Recipe) -> bool:
    """Returns whether another recipe needs another update.

    Args:
        old: The recipe before.
        new: The recipe after.
    """

    def sums(recipe: Recipe) -> bool:
        return recipe.accumulate_dtype == "fp32" and recipe.microbatch_size is not None

    same = all(getattr(old, name) == getattr(new, name) for name in UPDATE_FIELDS if name != "accumulate_dtype")
    return not same or sums(old) != sums(new)


def rewrapped(
    model: nn.Module, techniques: list[ModelTechnique], setup: Setup, *, before: Recipe
) -> list[ModelTechnique]:
    """Makes a model's passes run as another recipe says.

    Args:
        model: The prepared model.
        techniques: What is in place.
        setup: Its recipe is the new one.
        before: The recipe in place, or one that could only be put in place in part.

    Returns:
        What is in place now.

    Raises:
        InputError: The recipe cannot be carried out on this model; what surrounds its blocks is off now.
    """
    recipe = setup.recipe
    again = [technique for technique in model_techniques() if technique.comes_off(before, recipe)]
    for one in again:
        one.undo(model)
    for module in model.modules():
        unwrap(module)
    changed = [one(setup) for one in again if one.wanted(recipe)]
    for technique in changed:
        with about(technique.field):
            technique.change(model)
    return [*(one for one in techniques if not isinstance(one, tuple(again))), *changed]
