"""Steps that survive when memory runs out: the one place that catches, frees, takes a smaller recipe and tries again.

A step that fails leaves everything as it was (`step.py`); the same batch then runs again by a recipe that needs less
(`fallbacks.py` says which). Nothing costs anything while memory lasts: the random state (5 kB on the host), the running
statistics that the step keeps anyway, and the number of elements of the largest batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from snugfit.errors import OutOfMemoryError, SnugfitError, warn
from snugfit.fidelity import fidelity
from snugfit.recipe import Recipe
from snugfit.techniques.levels import LEVELS
from snugfit.training.fallbacks import Failure, Fallbacks, elements, samples_of
from snugfit.training.microbatch_check import MicrobatchCheck
from snugfit.training.out_of_memory import free_memory, release_traceback, tried
from snugfit.training.random_state import restore_generators, torch_generators
from snugfit.training.step import Step
from snugfit.training.step_outputs import KeptOutputs

if TYPE_CHECKING:
    from snugfit.training.trainer import Trainer


class Recovery:
    """Takes the steps of a trainer, and changes its recipe."""

    def __init__(self, step: Step, choices: Fallbacks, check: MicrobatchCheck) -> None:
        """Takes what an attempt is, the recipes to choose from, and the check that comes before a batch is halved."""
        self._step, self.choices, self._check = step, choices, check

    def step(self, trainer: Trainer, batch: Any, kept: KeptOutputs | None) -> Tensor:
        """Takes a step in as many attempts as it needs; `OutOfMemoryError` where nothing that needs less is left.

        `kept`: takes the model's outputs, where they are wanted.
        """
        step, size, samples = trainer.steps_done + 1, elements(batch), samples_of(batch)
        self._become(trainer, self.choices.recipe_for(size))
        random_state = torch_generators(trainer.device)
        failures: list[Failure] = []
        loss: Tensor
        while True:
            loss, cause = tried(lambda: self._step.take(trainer, step, batch, kept))
            if cause is None:
                break
            if trainer.ranks is not None:
                raise OutOfMemoryError(
                    f"step {step} ran out of memory in {trainer.phase} on process {trainer.ranks.number} of "
                    f"{trainer.ranks.count}: {cause} The others wait for it in vain, so all have to begin again from the "
                    "last saved state, by a recipe that needs less. `snugfit train --gpus` does that by itself.",
                    cause=cause,
                )
            failures.append(Failure(phase=trainer.phase, recipe=trainer.recipe, cause=cause))
            free_memory(trainer.device)
            # The next attempt draws the same dropout masks as the one that failed.
            restore_generators(random_state, trainer.device)
            self._take_less(trainer, step, failures, batch)
        stays = self.choices.went_well(size, trainer.recipe, failures)
        if failures:
            self.choices.tell(step, failures, trainer.recipe, stays=stays, samples=samples)
        self._become(trainer, self.choices.recipe_for(0))
        if trainer.update.interrupted:
            self._after_interruption(trainer, step)
        return loss

    def _take_less(self, trainer: Trainer, step: int, failures: list[Failure], batch: Any) -> None:
        """After a failed attempt: puts the next recipe in place that can be carried out."""
        if trainer.update.begun:
            raise OutOfMemoryError(
                f"step {step} ran out of memory in {failures[-1].phase} after some parameters were updated, so it can "
                f"neither be undone nor finished: {failures[-1].cause} Go back to a checkpoint, and resume with a smaller "
                "batch, checkpoint=all, or without step_in_backward.",
                undone=False,
            )
        trainer.finish()
        samples = samples_of(batch)
        if self._check.pending and samples is not None and samples > 1:
            trainer.found_out(self._check.before_halving(batch, trainer.recipe, trainer.workload))
        while True:
            recipe = self.choices.next_recipe(failures, samples)
            if recipe is None:
                self._become(trainer, self.choices.recipe_for(0))
                raise self.choices.gave_up(step, failures, samples, trainer.device)
            if self._become(trainer, recipe):
                return

    def _after_interruption(self, trainer: Trainer, step: int) -> None:
        """After an update that was short of memory and was finished: makes the next ones need less."""
        lean = self.choices.lean_update(trainer.recipe) if trainer.update.by_lists else None
        advice = "The recipe stays as it is."
        if lean is not None and self._become(trainer, lean):
            self.choices.stay_with(lean)
            advice = "The run goes on with optimizer_impl=for-loop, whose temporaries are those of one parameter."
        warn(
            f"step {step} ran out of memory inside the update, which was finished all the same: it is the one that would "
            f"have happened. {advice}"
        )

    def change_recipe(self, trainer: Trainer, recipe: Recipe) -> None:
        """Goes on with another recipe of the caller's choice, between two steps; see `Trainer.change_recipe`."""
        before = self.choices.recipe_for(0)
        self.choices.change_to(recipe)
        try:
            trainer.put_in_place(recipe)
        except BaseException:
            self.choices.change_to(before)
            raise

    def try_recipe(self, trainer: Trainer, recipe: Recipe) -> bool:
        """Goes on with another recipe for a while, in all processes or in none; see `Trainer.try_recipe`."""
        if not self._become_together(trainer, recipe):
            return False
        self.choices.stay_with(recipe)
        return True

    def take_next_fallback(self, trainer: Trainer) -> bool:
        """Goes on with the next fallback that gives the same update; see `Trainer.take_next_fallback`."""
        level = LEVELS.index(fidelity(trainer.recipe, trainer.workload).level)
        for recipe in self.choices.left:
            alike = LEVELS.index(fidelity(recipe, trainer.workload).level) <= level
            if alike and recipe != trainer.recipe and self._become_together(trainer, recipe):
                self.choices.change_to(recipe)
                return True
        return False

    def _become_together(self, trainer: Trainer, recipe: Recipe) -> bool:
        """`_become` in all processes, or in none."""
        before, done = trainer.recipe, self._become(trainer, recipe)
        if trainer.ranks is None or all(there for (there,) in trainer.ranks.agree([done])):
            return done
        if done:
            self._become(trainer, before)
        return False

    def _become(self, trainer: Trainer, recipe: Recipe) -> bool:
        """Puts another recipe in place; where that fails the old one stays, and False is returned."""
        try:
            _, cause = tried(lambda: trainer.put_in_place(recipe))
            if cause is None:
                return True
        except SnugfitError as error:  # this model cannot do it
            release_traceback(error)
        free_memory(trainer.device)
        return False
