"""`snugfit.apply`: the techniques that live in a model, for loops that keep their own forward, backward and update.

What `prepare` does around a step is done here around each call of the model: its forward method is wrapped on the instance,
and so are those of its parts, which loops call as well (`model.encoder(x)`, the networks of a `ModuleDict`); of calls inside
each other only the outermost counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import nn

from snugfit.attributes import attributes_set
from snugfit.errors import InputError, RecipeError, about, warn
from snugfit.phases import phase
from snugfit.private_torch import current_node
from snugfit.recipe import Recipe
from snugfit.run import Run
from snugfit.techniques import left_to_the_loop
from snugfit.techniques.base import ModelTechnique, Setup, WrappedForward, model_techniques, wanted_techniques
from snugfit.techniques.blocks import callable_parts, has_forward
from snugfit.techniques.host_pool import HostPool
from snugfit.techniques.init.apply import settle
from snugfit.techniques.streams import CopyStream
from snugfit.techniques.true_precision.apply import held_in
from snugfit.training.caches import caching_configs, without_caches
from snugfit.training.given_model import HasRecipe, check_lazy, place_of, recipe_and_fallbacks
from snugfit.training.switch import remember_owner, take_over
from snugfit.workload import Workload

_OF_TRANSFORMS = ("saved tensor hooks", "Cannot access storage of")
"""What torch says inside of its transforms of functions."""


class Applied:
    """Techniques on a model whose loop is somebody's own; made by `snugfit.apply`.

    As a context (`with applied:` around forward and backward) it holds what torch has switches for, not modules: the kernels
    of `attention='eager'` and `'flash'`, and `precision='tf32'`. All else needs no context.
    """

    def __init__(self, model: nn.Module, setup: Setup, techniques: list[ModelTechnique]) -> None:
        """Wraps the model; use `apply`.

        Args:
            model: The model, with the techniques put in place.
            setup: What they were given.
            techniques: Those that surround its calls.
        """
        self.model = model
        self.recipe = setup.recipe
        self._setup, self._techniques = setup, techniques
        self._inside = False
        self._around: list[ExitStack] = []
        self._caching = caching_configs(model)
        self._on = True
        for module in dict.fromkeys(_called_from_outside(model)):
            module.forward = WrappedForward(module, self._call)

    @property
    def host_bytes(self) -> int:
        """Bytes the recipe keeps in the host pool now."""
        return self._setup.pool.nbytes

    @property
    def peak_host_bytes(self) -> int:
        """Most bytes the recipe has kept in the host pool."""
        return self._setup.pool.peak_bytes

    def __enter__(self) -> Applied:
        """Switches torch as the recipe wants it, until the context ends; contexts inside each other are one."""
        self._check_on()
        around = ExitStack()
        with around:
            for technique in () if self._around else self._techniques:
                around.enter_context(technique.around_step())
            self._around.append(around.pop_all())
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._around.pop().__exit__(*error)

    def remove(self) -> None:
        """Takes everything off the model: it computes as it did before, with the weights that it has now.

        What cannot be undone stays, and a warning names it: weights in 16 bits, packed weights, adapters.

        Raises:
            InputError: It is off already, or something else was put on the model since.
        """
        self._check_on()
        take_over(self.model)
        for one in model_techniques():
            if one.stays and one.wanted(self.recipe):
                value = getattr(self.recipe, one.field)
                warn(f"{one.field}={value!r}: what cannot be taken off stays on the model: {one.stays}.")

    def give_up_model(self) -> None:
        """Takes note that the techniques are off the model, or another's are on it."""
        self._on = False

    def _check_on(self) -> None:
        if not self._on:
            raise InputError(
                "these techniques are not on the model any more: remove() was called, or the model was prepared or "
                "applied to again."
            )

    def _call(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs the model, or a part of it, with the techniques around it."""
        if self._inside or current_node() is not None:  # a block that backward computes again
            return forward(*args, **kwargs)
        trained = torch.is_grad_enabled()
        try:
            with ExitStack() as around:
                for context in self._contexts(trained=trained):
                    around.enter_context(context)
                for technique in self._techniques:
                    args, kwargs = technique.convert((args, kwargs))
                output = forward(*args, **kwargs)
                for technique in self._techniques:
                    output = technique.returned(output)
                return output
        except RuntimeError as error:
            if not any(one in str(error) for one in _OF_TRANSFORMS):
                raise
            raise InputError(
                "torch.func.grad, vmap and their kin do not go with checkpoint and offload_activations, which use hooks of "
                "saved tensors. Take torch.autograd.grad(..., create_graph=True) in their place (functional_call is "
                "fine), or leave those fields out of the recipe."
            ) from error

    def _contexts(self, *, trained: bool) -> Iterator[AbstractContextManager[Any]]:
        yield attributes_set([self], _inside=True)
        yield without_caches(self._caching if trained else [])
        for technique in self._techniques:
            if not self._around:
                if trained and technique.spans_backward:
                    raise _needs_context(technique, self.recipe)
                yield technique.around_step()
            yield technique.around_forward()
            if trained:
                yield technique.around_training_forward()


def apply(model: nn.Module, recipe: Recipe | HasRecipe, *, device: torch.device | str | None = None) -> Applied:
    """Puts the techniques that live in a model on it, for a loop that keeps its own forward, backward and optimizers.

    So train GANs, reinforcement learning, MAML, LBFGS, two optimizers, Lightning's manual optimisation. The loop stays as it
    is; call this before it makes its optimizers. The model is changed in place, as by `snugfit.prepare`, and only what the
    recipe names is changed. Under autocast the model returns fp32, since losses are then computed outside of it.

    Args:
        model: Any module with its weights; a `ModuleDict` of several will do.
        recipe: How activations, weights and attention are held, or a plan, which has a `recipe`. What the loop itself does
            (microbatches, optimizers, loading) is refused by name.
        device: Where the model goes; None: where it is.

    Returns:
        What is on the model: `.remove()` takes it off; a context for recipes that need one (`with applied:`).

    Raises:
        RecipeError: The recipe has fields that belong to the loop; all of them at once.
        InputError: The recipe cannot be carried out on this model or device.
    """
    recipe, _ = recipe_and_fallbacks(recipe, ())
    problems = left_to_the_loop(recipe)
    if problems:
        raise RecipeError(problems, subject="recipe for a loop of your own")
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; give a torch.nn.Module, such as a ModuleDict of several.")
    places = dict.fromkeys(str(one.device) for one in model.parameters())
    if device is None and len(places) > 1:
        raise InputError(f"the model is on several devices ({', '.join(places)}), and apply() is for one. Say device=.")
    place = place_of(device or next(iter(places), "cpu"), model)
    workload = Workload()
    Run(recipe, workload)
    check_lazy(model, recipe)
    setup = Setup(recipe=recipe, workload=workload, device=place, pool=HostPool(place), copies=CopyStream(place))
    take_over(model)
    with phase("build"):
        techniques = wanted_techniques(setup)
        for technique in techniques:
            with about(technique.field):
                technique.change_before_it_moves(model)
        settle(model, device=place, dtype=held_in(recipe))
        for technique in techniques:
            with about(technique.field):
                technique.change(model)
    applied = Applied(model, setup, techniques)
    remember_owner(model, applied)
    if recipe.precision == "16-mixed":
        warn(
            "precision='16-mixed' loses small gradients unless the loss is scaled, and your loop owns backward: put a "
            "torch.amp.GradScaler there, or take bf16-mixed."
        )
    return applied


def _called_from_outside(model: nn.Module) -> Iterator[nn.Module]:
    """Yields what a loop may call: the model, or those in a container, and their parts."""
    for whole in [model] if has_forward(model) else [part for _, part in callable_parts(model)]:
        yield whole
        yield from (part for _, part in callable_parts(whole))


def _needs_context(technique: ModelTechnique, recipe: Recipe) -> InputError:
    return InputError(
        f"{technique.field}={getattr(recipe, technique.field)!r} sets a switch of torch that must hold in backward, "
        "too. Put both in a context: applied = snugfit.apply(model, recipe), and then `with applied:` around forward and "
        "backward."
    )
