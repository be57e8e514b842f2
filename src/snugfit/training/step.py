"""The training step: the whole effective batch in, one update done. Real training and the simulator run this very code."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from snugfit.errors import InputError, OutOfMemoryError, SnugfitError, SnugfitWarning, TrainingError
from snugfit.fidelity import Fidelity, fidelity
from snugfit.recipe import Recipe
from snugfit.techniques.base import ModelTechnique
from snugfit.techniques.declaration import LEVELS
from snugfit.techniques.host_pool import HostPool
from snugfit.techniques.lost_updates import LostUpdates
from snugfit.techniques.microbatch.apply import (
    LossWeight,
    Split,
    batch_length,
    first_tensor,
    loss_weights,
    map_tensors,
    split_batch,
)
from snugfit.training.caches import caching_configs, without_caches
from snugfit.training.evaluation_pieces import EvaluationPieces
from snugfit.training.health import DEPTH, Health, Statistics
from snugfit.training.microbatch_check import MicrobatchCheck
from snugfit.training.model_call import Forward, Loss, loss_of, output_of
from snugfit.training.optimizer_handle import OptimizerHandle
from snugfit.training.order import Order, standard
from snugfit.training.out_of_memory import free_memory, insist, is_out_of_memory, let_go
from snugfit.training.per_parameter import PerParameterUpdate
from snugfit.training.phases import phase
from snugfit.training.random_state import restore_generators, torch_generators
from snugfit.training.recovery import Failure, Recovery, elements, samples_of
from snugfit.training.schedule import lr_factor
from snugfit.training.switch import Rebuild
from snugfit.training.update import WholeUpdate
from snugfit.workload import Workload


class Trainer:
    """Trains a model by a recipe, one whole batch a step; built by `snugfit.prepare`."""

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        workload: Workload,
        device: torch.device,
        *,
        techniques: list[ModelTechnique],
        update: WholeUpdate | PerParameterUpdate,
        health: Health,
        rebuild: Rebuild,
        handle: OptimizerHandle,
        scheduler: Any | None,
        fallbacks: tuple[Recipe, ...],
        pool: HostPool,
        scaler: torch.amp.GradScaler | None,
        generator: torch.Generator | None,
        lost_updates: LostUpdates | None,
        check: MicrobatchCheck,
        loss: Loss | None,
        forward: Forward | None,
        split: Split | None,
        loss_weight: LossWeight,
        order: Order = standard,
    ) -> None:
        """Takes the parts; use `prepare`.

        Args:
            model: The model, changed in place by the techniques.
            recipe: How the step is held in memory.
            workload: What is learned.
            device: Where training runs.
            techniques: Those that surround the forward pass.
            update: What follows the last backward pass.
            health: Judge of the run.
            rebuild: Puts another recipe in place.
            handle: The optimizer as its owner holds it.
            scheduler: A learning-rate scheduler to step after each update, or None.
            fallbacks: Recipes to go on with where memory runs out.
            pool: Host memory the recipe uses.
            scaler: Loss scaling, or None.
            generator: Random bits of stochastic rounding, or None.
            lost_updates: Watcher of lost updates, or None.
            check: Looks whether microbatches add up to the batch, before the first update by them.
            loss: Function of output and batch, or None where the model returns its loss.
            forward: How a batch reaches the model, or None for the usual ways.
            split: How a batch is cut, or None for dimension 0.
            loss_weight: How losses of microbatches combine.
            order: The order of the microbatches' passes.
        """
        self.model = model
        self.recipe = recipe
        self.workload = workload
        self.device = device
        self.steps_done = 0
        self._techniques = techniques
        self._update = update
        self._health = health
        self._rebuild = rebuild
        self._handle = handle
        self._scheduler = scheduler
        self._recovery = Recovery(recipe, workload, fallbacks)
        self._hooks = [update.release]
        self._pool = pool
        self._scaler = scaler
        self._generator = generator
        self._lost_updates = lost_updates
        self._check = check
        self._loss = loss
        self._forward = forward
        self._split = split or split_batch
        self._loss_weight = loss_weight
        self._order = order
        self._caching = caching_configs(model)
        self._statistics = Statistics(model, 1 if health.waits else DEPTH + 2)
        self._replaced = False
        self._phase = "data"
        self._evaluation = EvaluationPieces(device, self._split, loss_weight)

    @property
    def fidelity(self) -> Fidelity:
        """How close this run is to plain training, with the fields that lower it, and those that are not checked yet."""
        return fidelity(self.recipe, self.workload)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer to build a learning-rate scheduler on, and to read and set rates.

        The one that was given to `prepare`, or the one that was made. `trainer.step` steps it. Its groups hold the rates
        before the schedule of the settings (`lr_factor`).
        """
        return self._handle.optimizer

    @property
    def host_bytes(self) -> int:
        """Bytes the recipe keeps in the host pool now."""
        return self._pool.nbytes

    @property
    def peak_host_bytes(self) -> int:
        """Most bytes the recipe has kept in the host pool."""
        return self._pool.peak_bytes

    @property
    def lr_factor(self) -> float:
        """What the learning rate of the next step is multiplied with by the schedule."""
        return lr_factor(self.steps_done, self.workload)

    def step(self, batch: Any) -> Tensor:
        """Takes one update on a whole batch, however many microbatches that needs.

        Args:
            batch: A tensor, tuple or dict of tensors of shape [samples, ...], on the host or the device; or anything that
                the `forward` and `split` given to `prepare` know.

        Returns:
            The batch's loss before the update: 0-dim, detached, on the device.

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
        self._judged()
        if not self.model.training:  # a part that the caller holds in evaluation mode (a frozen norm) stays there
            self.model.train()
        step, size = self.steps_done + 1, elements(batch)
        self._become(self._recovery.recipe_for(size))
        random_state = torch_generators(self.device)
        failures: list[Failure] = []
        while True:
            try:
                loss = self._attempt(step, batch)
                break
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                failures.append(Failure(phase=self._phase, recipe=self.recipe, cause=let_go(error)))
            free_memory(self.device)
            restore_generators(random_state, self.device)
            self._take_less(step, failures, batch)
        self.steps_done = step
        self._handle.stepped()
        stays = self._recovery.went_well(size, self.recipe, failures)
        if failures:
            self._recovery.tell(step, failures, self.recipe, stays=stays, samples=samples_of(batch))
        self._become(self._recovery.recipe_for(0))
        if self._update.interrupted:
            self._after_interruption(step)
        if self._scheduler is not None:
            self._scheduler.step()
        return loss

    def _attempt(self, step: int, batch: Any) -> Tensor:
        """Takes one update, or leaves everything as it was."""
        self._phase = "data"
        pieces = self._pieces(batch)
        if len(pieces) > 1 and self._check.pending:
            self._learn(self._check.learn, batch)
        watched = self._lost_updates if self.lr_factor > 0 else None
        try:
            self._statistics.remember(step)
            if watched:
                watched.before(step)
            self._handle.pass_on()
            self._update.begin(self.lr_factor)
            with ExitStack() as around:
                for technique in self._techniques:
                    around.enter_context(technique.around_step())
                loss = self._order(pieces, self._forward_pass, self._backward_pass)
                self._phase = "optimizer"
                with phase("optimizer"):
                    self._update.finish(step, loss)
        except BaseException:
            self._update.abandon()
            self._statistics.restore(step)
            if watched:
                watched.forget()
            raise
        if watched:
            insist(lambda: watched.after(step), self.device)
        return loss

    def _learn(self, check: Callable[..., Workload], batch: Any) -> None:
        """Takes note of what a check of the microbatches finds."""
        with ExitStack() as around:
            for technique in self._techniques:
                around.enter_context(technique.around_step())
            self.workload = check(self._loss_of, batch, self.recipe, self.workload)
        self._recovery.workload = self.workload

    def _take_less(self, step: int, failures: list[Failure], batch: Any) -> None:
        """Takes the next recipe that can be carried out, when the last attempt ran out of memory."""
        samples = samples_of(batch)
        if self._update.begun:
            raise OutOfMemoryError(
                f"step {step} ran out of memory in {failures[-1].phase} after some parameters were updated, so it can "
                f"neither be undone nor finished: {failures[-1].cause} Go back to a checkpoint, and resume with a smaller "
                "batch, checkpoint=all, or without step_in_backward.",
                undone=False,
            )
        self._judged(wait=True)
        if self._check.pending and samples is not None and samples > 1:
            self._learn(self._check.before_halving, batch)
        while True:
            recipe = self._recovery.next_recipe(failures, samples)
            if recipe is None:
                self._become(self._recovery.recipe_for(0))
                raise self._recovery.gave_up(step, failures, samples, self.device)
            if self._become(recipe):
                return

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
        self._judged(wait=True)
        before = self._recovery.recipe_for(0)
        self._recovery.change_to(recipe)
        try:
            self._put_in_place(recipe)
        except BaseException:
            self._recovery.change_to(before)
            raise

    def take_next_fallback(self) -> bool:
        """Goes on with the next fallback that gives the same update, between two steps, as if memory had run out.

        Returns:
            Whether there was one; `recipe` is what the run goes on with.

        Raises:
            TrainingError: One of the last steps was bad; the weights are those of the last good step.
        """
        self._judged(wait=True)
        level = LEVELS.index(self.fidelity.level)
        for recipe in self._recovery.left:
            alike = LEVELS.index(fidelity(recipe, self.workload).level) <= level
            if alike and recipe != self.recipe and self._become(recipe):
                self._recovery.change_to(recipe)
                return True
        return False

    def _become(self, recipe: Recipe) -> bool:
        """Puts another recipe in place; where that fails the old one stays, and False is returned."""
        try:
            self._put_in_place(recipe)
        except Exception as error:
            if not is_out_of_memory(error) and not isinstance(error, SnugfitError):
                raise
            let_go(error)
            free_memory(self.device)
            return False
        return True

    def _put_in_place(self, recipe: Recipe) -> None:
        if recipe == self.recipe:
            return
        techniques, update, health = self._rebuild(self.recipe, recipe, self._techniques, self._update, self._health)
        self._techniques, self.recipe = techniques, recipe
        if update is not self._update:
            self._update.release()
            self._update, self._health = update, health
            self._handle.serve(update)
            self._hooks[0] = update.release

    def _after_interruption(self, step: int) -> None:
        """The update was finished; the next ones shall need less."""
        lean = self._recovery.lean_update(self.recipe) if self._update.by_lists else None
        advice = "The recipe stays as it is."
        if lean is not None and self._become(lean):
            self._recovery.stay_with(lean)
            advice = "The run goes on with optimizer_impl=for-loop, whose temporaries are those of one parameter."
        warnings.warn(
            f"step {step} ran out of memory inside the update, which was finished parameter by parameter: it is the one "
            f"that would have happened. {advice}",
            SnugfitWarning,
            stacklevel=3,
        )

    def evaluate_batch(self, batch: Any) -> Any:
        """Returns the model's output for a batch, as the recipe computes it, without gradients.

        Args:
            batch: As for `step`; it goes through the model in one piece, or in smaller ones where memory runs out.

        Returns:
            Whatever the model returns. Training or evaluation mode is the caller's choice (`model.eval()`).

        Raises:
            OutOfMemoryError: One sample alone needs too much; training's state is as it was.
        """
        return self._evaluation.output(batch, self._evaluated)

    def _evaluated(self, batch: Any) -> Any:
        with torch.no_grad(), without_caches(self._caching), ExitStack() as around:
            for technique in self._techniques:
                around.enter_context(technique.around_step())
                around.enter_context(technique.around_forward())
            return output_of(self.model, self._arrived(batch), self._forward)

    def finish(self) -> None:
        """Waits for the steps under way and judges them.

        Raises:
            TrainingError: One of the last steps was bad; the weights are those of the last good step.
        """
        self._judged(wait=True)

    def give_up_model(self) -> None:
        """Takes the hooks off the parameters: another trainer takes the model over, and this one refuses to go on."""
        self.release_hooks()
        self._replaced = True

    @property
    def release_hooks(self) -> Callable[[], None]:
        """What takes the hooks off the parameters, without holding this trainer or an update it has replaced."""
        hooks = self._hooks
        return lambda: hooks[0]()

    def _judged(self, *, wait: bool = False) -> None:
        """Looks at the steps whose values have arrived; a bad one leaves no trace."""
        try:
            self._health.check(wait=wait)
        except TrainingError:
            bad = self._health.bad_step
            assert bad is not None
            self._statistics.restore(bad)
            self.steps_done = bad - 1
            raise

    def state_dict(self) -> dict[str, Any]:
        """Returns everything that the next step depends on, except the random state of torch.

        Returns:
            `model` (plain keys), `optimizer` (as torch's ordinary optimizer has it), `scheduler` (that of `scheduler=`),
            `scaler`, `rounding`, `steps_done`.
        """
        self._handle.pass_on()
        return {
            "model": self.model.state_dict(),
            "optimizer": self._update.state_dict(),
            "scheduler": self._scheduler.state_dict() if self._scheduler is not None else None,
            "scaler": self._scaler.state_dict() if self._scaler else None,
            "rounding": self._generator.get_state() if self._generator else None,
            "steps_done": self.steps_done,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a saved state.

        Args:
            state: From `state_dict`, of this or another recipe for the same workload.
        """
        self.model.load_state_dict(state["model"])
        self._update.load_state_dict(state["optimizer"])
        self._handle.serve(self._update)
        if self._scheduler is not None and state.get("scheduler") is not None:
            self._scheduler.load_state_dict(state["scheduler"])
        if self._scaler and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        if self._generator and state["rounding"] is not None:
            self._generator.set_state(state["rounding"].cpu())
        self.steps_done = int(state["steps_done"])

    def _pieces(self, batch: Any) -> list[tuple[Any, float | Tensor]]:
        size = self.recipe.microbatch_size
        tensor = first_tensor(batch)
        if self._forward is None and tensor is not None and tensor.shape[0] == 0:
            raise InputError("the batch holds no sample; give at least one.")
        if size is None or (self._split is split_batch and batch_length(batch) <= size):
            return [(batch, 1.0)]
        pieces = list(self._split(batch, size))
        if not pieces:
            raise InputError("split= returned no microbatch; it must cut the batch into a list of at least one.")
        if len(pieces) > 1 and self.recipe.step_in_backward:
            raise InputError(
                f"this batch makes {len(pieces)} microbatches of {size}, and step_in_backward frees each gradient before "
                "they can add up. Give batches of at most that size, or leave step_in_backward out."
            )
        weights = loss_weights(pieces, self._loss_weight)
        # A piece without a label that counts adds nothing; its own mean would be 0 / 0.
        return [(piece, weight) for piece, weight in zip(pieces, weights, strict=True) if not _is_zero(weight)]

    def _forward_pass(self, batch: Any) -> Tensor:
        self._phase = "data"
        with phase("data"):
            batch = self._arrived(batch)
        self._phase = "forward"
        with phase("forward"):
            return self._loss_of_arrived(batch)

    def _loss_of(self, batch: Any) -> Tensor:
        return self._loss_of_arrived(self._arrived(batch))

    def _loss_of_arrived(self, batch: Any) -> Tensor:
        with without_caches(self._caching), ExitStack() as around:
            for technique in self._techniques:
                around.enter_context(technique.around_forward())
                around.enter_context(technique.around_training_forward())
            return loss_of(output_of(self.model, batch, self._forward), batch, self._loss)

    def _backward_pass(self, loss: Tensor) -> None:
        self._phase = "backward"
        with phase("backward"):
            self._update.judge(loss)
            with self._update.own_backward():
                (self._scaler.scale(loss) if self._scaler else loss).backward()  # type: ignore[no-untyped-call]

    def _arrived(self, batch: Any) -> Any:
        batch = map_tensors(batch, lambda tensor: tensor.to(self.device, non_blocking=True))
        for technique in self._techniques:
            batch = technique.convert(batch)
        return batch


def _is_zero(weight: float | Tensor) -> bool:
    """Whether the host knows that a weight is 0; asking a device would make it wait."""
    return not isinstance(weight, Tensor) and weight == 0


OptimizerArgument = str | Optimizer | Callable[[Any], Optimizer]
