"""The trainer that `snugfit.prepare` returns: steps, changes of the recipe, and evaluation."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, overload

from torch import Tensor, nn
from torch.optim import Optimizer

from snugfit.errors import InputError, TrainingError
from snugfit.fidelity import Fidelity, fidelity
from snugfit.recipe import Recipe
from snugfit.techniques.levels import LEVELS
from snugfit.techniques.shard.ranks import Ranks
from snugfit.training.ema import AveragedWeights
from snugfit.training.evaluation import EvaluationPieces
from snugfit.training.fallbacks import Fallbacks
from snugfit.training.health import DEPTH, Statistics
from snugfit.training.late_clipping import warn_of_clipping
from snugfit.training.microbatch_check import MicrobatchCheck
from snugfit.training.passes import Passes
from snugfit.training.recovery import Recovery
from snugfit.training.schedule import lr_factor
from snugfit.training.step import Step
from snugfit.training.step_outputs import KeptOutputs, StepOutputs
from snugfit.training.switch import Rebuild
from snugfit.training.trainer_state import TrainerState
from snugfit.training.tuning import Tuning
from snugfit.workload import Workload


class Trainer(TrainerState):
    """Trains a model by a recipe, one whole batch a step; built by `snugfit.prepare`."""

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        workload: Workload,
        passes: Passes,
        rebuild: Rebuild,
        *,
        scheduler: Any | None,
        fallbacks: tuple[Recipe, ...],
        check: MicrobatchCheck,
    ) -> None:
        """Takes the parts; use `prepare`."""
        self.model = model
        self.recipe = recipe
        self.workload = workload
        self.device = rebuild.setup.device
        self.steps_done = 0
        self.phase = "data"
        """Where the step is: data, forward, backward or optimizer."""
        self.update = rebuild.update
        self._passes = passes
        self._rebuild = rebuild
        self._scheduler = scheduler
        self._step = Step(passes, rebuild, check, Statistics(model, 1 if self.update.health.waits else DEPTH + 2))
        self._recovery = Recovery(self._step, Fallbacks(recipe, workload, fallbacks), check)
        self._scaler, self._generator = self.update.scaler, rebuild.setup.generator
        self.evaluation = EvaluationPieces(passes)
        self.tuning: Tuning | None = None
        """Times several recipes in the next steps; None: nothing is timed."""
        decay = workload.ema_decay
        self.averages = None if decay is None else AveragedWeights(self.update.optimizer, decay)
        """Moving averages of the weights; None: none are kept."""
        self._replaced = self._called = False
        self._before: Fidelity | None = None  # of the recipes that steps were taken by before the present one
        self._stepped = False  # by the present one

    @property
    def fidelity(self) -> Fidelity:
        """How close this run is to plain training, with the fields that lower it, and those that are not checked yet.

        Of all recipes that it took steps by, the one that is furthest from it.
        """
        now, before = fidelity(self.recipe, self.workload), self._before
        return now if before is None or LEVELS.index(now.level) >= LEVELS.index(before.level) else before

    @property
    def ranks(self) -> Ranks | None:
        """The processes that share every batch with this one; None: none do."""
        return self._passes.ranks

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer to build a learning-rate scheduler on, and to read and set rates.

        The one that was given to `prepare`, or the one that was made. `trainer.step` steps it. Its groups hold the rates
        before the schedule of the settings (`lr_factor`).
        """
        return self._rebuild.handle.optimizer

    @property
    def host_bytes(self) -> int:
        """Bytes the recipe keeps in the host pool now."""
        return self._rebuild.setup.pool.nbytes

    @property
    def peak_host_bytes(self) -> int:
        """Most bytes the recipe has kept in the host pool."""
        return self._rebuild.setup.pool.peak_bytes

    @property
    def lr_factor(self) -> float:
        """What the learning rate of the next step is multiplied with by the schedule."""
        return lr_factor(self.steps_done, self.workload)

    @overload
    def step(self, batch: Any, *, outputs: Literal[False] = False) -> Tensor: ...

    @overload
    def step(self, batch: Any, *, outputs: Literal[True]) -> StepOutputs: ...

    def step(self, batch: Any, *, outputs: bool = False) -> Tensor | StepOutputs:
        """Takes one update on a whole batch, however many microbatches that needs.

        Args:
            batch: A tensor, tuple or dict of tensors of shape [samples, ...], on the host or the device; or anything that
                the `forward` and `split` given to `prepare` know.
            outputs: Whether the model's outputs and named losses are wanted, too. They take memory until the caller lets
                them go; the setting `keep_outputs` counts that in estimates and plans.

        Returns:
            The batch's loss before the update: 0-dim, detached, on the device; with `outputs` a `StepOutputs` that has it.

        Where memory runs out, the step is undone and the same batch runs again by a recipe that needs less
        (`recovery.py`); a `SnugfitWarning` says so, and `recipe` is the one the run goes on with.

        Raises:
            InputError: The batch does not fit the recipe or the model's way of taking batches.
            TrainingError: The loss or a gradient is not finite; weights, optimizer state and running statistics are those
                of the last good step, and so is `steps_done`.
            OutOfMemoryError: Nothing that needs less is left; its `undone` says whether the weights are those of the last
                whole step.
        """
        if self._replaced:
            raise InputError(
                "this model was prepared again, and that trainer has taken it over; go on with the new one."
            )
        if not self._called:
            self._called = True
            if self.workload.clip_norm is None and not self.workload.keep_gradients:
                warn_of_clipping(inspect.currentframe())
        self._judged()
        self._follow()
        if not self.model.training:  # a part that the caller holds in evaluation mode (a frozen norm) stays there
            self.model.train()
        kept = KeptOutputs() if outputs else None
        with nullcontext() if self.tuning is None else self.tuning.timed(self, batch):
            loss = self._recovery.step(self, batch, kept)
        self._stepped = True
        if self._scheduler is not None:
            self._scheduler.step()
        return loss if kept is None else kept.beside(loss)

    def _follow(self) -> None:
        """Adopts what is trained now: parameters may have been frozen, unfrozen or regrouped since the last step."""
        if self._rebuild.outdated:
            self.finish()
            self._rebuild.follow(self.recipe)
            self.update = self._rebuild.update
            self._step.late_reads.pending = True

    def found_out(self, workload: Workload) -> None:
        """Goes on with a workload that says more of model and loss than the one before."""
        self.workload = self._recovery.choices.workload = workload

    def change_recipe(self, recipe: Recipe) -> None:
        """Goes on with another recipe, between two steps; weights, optimizer state and schedule stay as they are.

        Args:
            recipe: It may differ from the run's in the fields of `changeable.CHANGEABLE`.

        Raises:
            RecipeError: It changes what stays for the whole run, or contradicts the workload.
            InputError: It cannot be carried out on this model; the recipe before is in place.
            TrainingError: One of the last steps was bad; the weights are those of the last good step.
            RuntimeError: There is no memory for the change; the recipe before is in place.
        """
        self.finish()
        self._follow()
        self._recovery.change_recipe(self, recipe)

    def try_recipe(self, recipe: Recipe) -> bool:
        """Goes on with another recipe, between two steps, whose fallbacks stay what they are.

        Args:
            recipe: As for `change_recipe`, which `Plan.rivals` are.

        Returns:
            Whether it is in place; False where this model or its memory cannot have it, and the one before stays.

        Raises:
            TrainingError: One of the last steps was bad; the weights are those of the last good step.
        """
        self.finish()
        self._follow()
        return self._recovery.try_recipe(self, recipe)

    def take_next_fallback(self) -> bool:
        """Goes on with the next fallback that gives the same update, between two steps, as if memory had run out.

        Returns:
            Whether there was one; `recipe` is what the run goes on with.

        Raises:
            TrainingError: One of the last steps was bad; the weights are those of the last good step.
        """
        self.finish()
        return self._recovery.take_next_fallback(self)

    def put_in_place(self, recipe: Recipe) -> None:
        """Puts another recipe in place between two steps, unchecked; `change_recipe` is what callers want."""
        if recipe == self.recipe:
            return
        before = self.fidelity if self._stepped else self._before
        self._passes.techniques = self._rebuild(self.recipe, recipe, self._passes.techniques)
        self._before, self._stepped = before, False
        self.recipe = recipe
        self.update = self._rebuild.update

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model holds the averages of its weights (`ema_decay`) while the context is open; without them, its weights.

        Raises:
            TrainingError: One of the last steps was bad; the weights are those of the last good step.
        """
        if self.averages is None:
            yield
            return
        self.finish()
        with self.averages.in_place():
            yield

    def evaluate_batch(self, batch: Any) -> Any:
        """Returns the model's output for a batch, as the recipe computes it, without gradients.

        Args:
            batch: As for `step`; it goes through the model in one piece, or in smaller ones where memory runs out.

        Returns:
            Whatever the model returns. Training or evaluation mode is the caller's choice (`model.eval()`).

        Raises:
            OutOfMemoryError: One sample alone needs too much; training's state is as it was.
        """
        return self.evaluation.output(batch)

    def finish(self) -> None:
        """Waits for the steps under way and judges them.

        Raises:
            TrainingError: One of the last steps was bad; the weights are those of the last good step.
        """
        self._judged(wait=True)

    def _judged(self, *, wait: bool = False) -> None:
        """Looks at the steps whose values have arrived; a bad one leaves no trace."""
        try:
            self.update.health.check(wait=wait)
        except TrainingError:
            bad = self.update.health.bad_step
            assert bad is not None
            self._step.statistics.restore(bad)
            self.steps_done = bad - 1
            raise

    def give_up_model(self) -> None:
        """Takes the hooks off the parameters: another trainer takes the model over, and this one refuses to go on."""
        self._rebuild.release()
        self._replaced = True
