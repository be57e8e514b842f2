"""Which recipe is tried when a step runs out of memory, for how long it stays, and what the person is told.

- A fallback that the caller gave comes first, in the order given; after the last one, or without any, the microbatch is
  halved, from the whole batch on, down to one sample; the smallest way is tried twice, since freed memory may do. A loss
  that couples samples is not halved (`separation.py`): it would be another loss.
- In the update nothing of that helps but a fallback that holds gradients or state otherwise: activations are gone by then.
  An update that had begun is finished (`unbroken_update.py`) and, where its kernels were those for lists of tensors, the run
  goes on with `optimizer_impl=for-loop`, whose temporaries are those of one parameter.
- A batch larger than every one that went well before keeps the new recipe for itself and for those of its size: a rare long
  sample does not slow the whole run down. When an ordinary batch fails, the run goes on with the new recipe.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from snugfit.errors import OutOfMemoryError, RecipeError, warn
from snugfit.fidelity import fidelity
from snugfit.private_torch.sparse_layouts import parts_of
from snugfit.recipe import Recipe
from snugfit.run import Run
from snugfit.techniques.batches import first_tensor, tensors_of, why_uncut
from snugfit.training.changeable import UPDATE_FIELDS, differing, problems_of_change
from snugfit.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """One attempt at a step that ran out of memory."""

    phase: str
    """data, forward, backward or optimizer."""
    recipe: Recipe
    """What it was tried with."""
    cause: str
    """The first line of the error."""


class Fallbacks:
    """Chooses the recipe of each step, and learns from what failed and what went well."""

    def __init__(self, recipe: Recipe, workload: Workload, fallbacks: tuple[Recipe, ...]) -> None:
        """Checks the fallbacks; `RecipeError` where one changes what must stay, or contradicts the workload."""
        problems = [
            f"fallback {number}: {problem}"
            for number, fallback in enumerate(fallbacks, start=1)
            for problem in problems_of_change(recipe, fallback, workload)
        ]
        if problems:
            raise RecipeError(problems, subject="fallbacks")
        self.workload = workload
        """What is learned; a check of the microbatches may add to it."""
        self._fallbacks = fallbacks
        self._base = recipe
        self._used = 0
        self._next = 0
        self._largest = 0
        self._large: tuple[int, Recipe] | None = None

    def recipe_for(self, size: int) -> Recipe:
        """Returns the recipe to begin a step with.

        `size`: elements of the batch, see `elements`.
        """
        self._next = self._used
        if self._large is not None and size >= self._large[0]:
            return self._large[1]
        return self._base

    def next_recipe(self, failures: list[Failure], samples: int | None) -> Recipe | None:
        """Returns the recipe to try after a failure; `samples` is None where nobody knows.

        A recipe that this step has not been tried with, or the smallest one once more; None when none is left.
        """
        failure = failures[-1]
        while self._next < len(self._fallbacks):
            fallback = self._fallbacks[self._next]
            self._next += 1
            changed = differing(fallback, failure.recipe)
            if changed and (failure.phase != "optimizer" or set(changed) & set(UPDATE_FIELDS)):
                return fallback
        halved = None if failure.phase == "optimizer" else self._halved(failure.recipe, samples)
        if halved is None and [one.recipe for one in failures].count(failure.recipe) == 1:
            return failure.recipe
        return halved

    def _halved(self, recipe: Recipe, samples: int | None) -> Recipe | None:
        if self.workload.coupled_samples:  # smaller pieces would be another loss
            return None
        sizes = [size for size in (recipe.microbatch_size, samples) if size is not None]
        if not sizes or min(sizes) < 2:
            return None
        halved = recipe.replace(microbatch_size=min(sizes) // 2)
        return halved if Run.is_possible(halved, self.workload) else None

    def went_well(self, size: int, recipe: Recipe, failures: list[Failure]) -> bool:
        """Learns from a step that succeeded after some failures; returns whether the run stays with its recipe."""
        if not failures:
            if self._large is None or size < self._large[0]:
                self._largest = max(self._largest, size)
            return True
        if 0 < self._largest < size:
            smallest = size if self._large is None else min(size, self._large[0])
            self._large = (smallest, recipe)
            return False
        self.stay_with(recipe)
        self._largest = max(self._largest, size)
        return True

    def stay_with(self, recipe: Recipe) -> None:
        """Makes a recipe the run's."""
        self._base, self._used, self._large = recipe, self._next, None

    def change_to(self, recipe: Recipe) -> None:
        """Makes the caller's recipe the run's; fallbacks before it in the list are not tried again."""
        problems = list(problems_of_change(self._base, recipe, self.workload))
        if problems:
            raise RecipeError(problems, subject="recipe to go on with")
        if recipe in self._fallbacks:
            self._next = max(self._next, self._fallbacks.index(recipe) + 1)
        self.stay_with(recipe)

    @property
    def left(self) -> tuple[Recipe, ...]:
        """The fallbacks that were not taken yet."""
        return self._fallbacks[self._used :]

    def lean_update(self, recipe: Recipe) -> Recipe | None:
        """Returns the recipe with the smallest temporaries in its update; None where there is none, or it is this one."""
        try:
            lean = recipe.replace(optimizer_impl="for-loop")
        except RecipeError:
            return None
        return lean if lean != recipe and Run.is_possible(lean, self.workload) else None

    def tell(self, step: int, failures: list[Failure], recipe: Recipe, *, stays: bool, samples: int | None) -> None:
        """Warns of what was done about the failures of a step; `stays`: whether the run goes on with the new recipe."""
        first = failures[0]
        tried = "; ".join(f"{described(one.recipe, first.recipe, samples)} in {one.phase}" for one in failures)
        scope = (
            "The run goes on with this recipe."
            if stays
            else "It was larger than every batch before, so the others keep their recipe."
        )
        if first.recipe == recipe:
            scope = "The recipe stays as it is."
        warn(
            f"step {step} ran out of memory ({tried}): {first.cause} The step was undone, and the same batch has run with "
            f"{described(recipe, first.recipe, samples)}. {self._lowered(first.recipe, recipe)} {scope}"
        )

    def _lowered(self, before: Recipe, after: Recipe) -> str:
        old, new = (fidelity(recipe, self.workload).reasons for recipe in (before, after))
        reasons = [sentence for name, (_, sentence) in new.items() if name not in old]
        if fidelity(after, self.workload).unchecked and not fidelity(before, self.workload).unchecked:
            reasons.append("Whether the update is the same could not be checked.")
        return " ".join(reasons) if reasons else "The update is the same."

    def gave_up(
        self, step: int, failures: list[Failure], samples: int | None, device: torch.device
    ) -> OutOfMemoryError:
        """Returns the error for a step that no recipe made fit."""
        first, last = failures[0], failures[-1]
        tried = "; ".join(f"{described(one.recipe, first.recipe, samples)} in {one.phase}" for one in failures)
        advice = (
            "offload_optimizer, optimizer_impl=for-loop or an optimizer with less state needs less in the update"
            if last.phase == "optimizer"
            else "checkpoint=all, offload_activations or offload_optimizer needs less"
        )
        if self.workload.coupled_samples:
            tried += "; smaller microbatches would change this loss, whose samples are coupled"
        return OutOfMemoryError(
            f"step {step} ran out of memory on {device}, and no smaller way is left. Tried: {tried}. {last.cause} "
            f"Nothing of the step was kept; the weights are those of step {step - 1}. Resume with another recipe: {advice}."
        )


def described(recipe: Recipe, reference: Recipe, samples: int | None) -> str:
    """Returns, in words, how a recipe differs from `reference` in what matters for memory."""
    changed = differing(recipe, reference)
    if changed:
        return ", ".join(f"{name}={getattr(recipe, name)}" for name in changed)
    if recipe.microbatch_size is not None:
        return f"microbatch_size={recipe.microbatch_size}"
    return "the whole batch" if samples is None else f"the whole batch of {samples}"


def elements(batch: Any) -> int:
    """Returns a batch's number of elements, by which batches of other lengths are compared.

    `batch`: a tensor, or tuples, lists and mappings of such; anything else counts 0.
    """
    return sum(part.numel() for tensor in tensors_of(batch) for part in parts_of(tensor))


def samples_of(batch: Any) -> int | None:
    """Returns the number of samples of a batch, or None where it holds no tensor or cannot be cut."""
    tensor = first_tensor(batch)
    return None if tensor is None or why_uncut(batch) else int(tensor.shape[0])
