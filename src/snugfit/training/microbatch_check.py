"""Before the first update by microbatches: do they add up to the batch? The person is told before anything is wrong.

A recipe that was given goes on with a warning and is labelled `different` from then on; the recipe of a plan that promised
otherwise is refused. Nothing is left of it after that: one look at a flag each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from snugfit.errors import InputError, SnugfitError, in_words, warn
from snugfit.recipe import Recipe
from snugfit.training.out_of_memory import is_out_of_memory, release_traceback
from snugfit.training.passes import Passes
from snugfit.training.separation import separation
from snugfit.training.separation_verdict import Separation
from snugfit.training.untouched import untouched
from snugfit.workload import Workload

TRIES = 3
"""Steps that try the check, where the first ones cannot say (a gradient that is zero)."""
_SCALE = 2.0**12
"""Factor of a loss whose gradients are fp16."""


class MicrobatchCheck:
    """The check of one run, until it is done."""

    def __init__(
        self, workload: Workload, passes: Passes, parameters: Sequence[nn.Parameter], *, scaled: bool, promised: bool
    ) -> None:
        """Takes what the check needs to run samples.

        `scaled`: whether the loss is scaled, since gradients are fp16.
        `promised`: whether a plan has promised that microbatches change nothing.
        """
        self._passes, self._parameters = passes, parameters
        self._scale = _SCALE if scaled else 1.0
        self._promised = promised
        self._tries = TRIES if workload.coupled_samples is None else 0
        self._failed = False
        self._open = ""  # what has to be said, where the check could not be made

    @property
    def pending(self) -> bool:
        """Whether the check is still to be made."""
        return self._tries > 0

    def learn(self, batch: Any, recipe: Recipe, workload: Workload) -> Workload:
        """Checks before an update by microbatches; returns the workload with what was found."""
        assert recipe.microbatch_size is not None
        self._open = ""  # of a step that was not taken
        found = self._look(batch, recipe, workload, recipe.microbatch_size)
        told = found.told(masks=workload.dropout)
        if told and self._promised:
            raise InputError(
                f"microbatch_size={recipe.microbatch_size} was planned as changing nothing, and it changes the update: "
                f"{told} Nothing was updated. Plan again with coupled_samples=True, or with allow='different'."
            )
        if told:
            warn(f"microbatch_size={recipe.microbatch_size} changes the update of this model and loss: {told}")
        elif found.separates is None and (found.failed or not self.pending):
            self._open = found.sentence
        return workload.replace(**found.traits())

    def say_what_is_open(self, recipe: Recipe) -> None:
        """Warns, once and before an update whose passes have run, that they could not be checked."""
        said, self._open = self._open, ""
        if said:
            self._tries = 0
            warn(
                f"microbatch_size={recipe.microbatch_size} could not be checked against the whole batch: {said} "
                "If the loss couples samples, the update is another one: say coupled_samples=True then, else False."
            )

    def said_of(self, error: BaseException, batch: Any, recipe: Recipe) -> BaseException:
        """Returns what a person is told of an error in the caller's code where even a few samples could not run."""
        if not self._failed or isinstance(error, SnugfitError) or not isinstance(error, Exception):
            return error
        if is_out_of_memory(error) or not self._runs_whole(batch):
            return error
        return InputError(
            f"microbatch_size={recipe.microbatch_size} cuts this batch into pieces that model and loss cannot run "
            f"({in_words(error)}); the whole batch runs. What is as long as the batch and has no entry for each sample, "
            "such as class weights, must not be cut: keep it out of the batch, or give split=fn(batch, size). Nothing was "
            "updated."
        )

    def _runs_whole(self, batch: Any) -> bool:
        """Whether the whole batch goes forward, with nothing kept for backward."""
        passes, nothing = self._passes, torch.autograd.graph.saved_tensors_hooks(_forgotten, _forgotten)
        try:
            with untouched([*passes.parts, batch]), passes.around_step(), nothing:
                passes.loss_of(passes.arrived(batch))
        except Exception as error:
            release_traceback(error)
            return False
        return True

    def before_halving(self, batch: Any, recipe: Recipe, workload: Workload) -> Workload:
        """Checks with two samples, when memory ran out and smaller microbatches may help."""
        return workload.replace(**self._look(batch, recipe, workload, 2).traits())

    def _look(self, batch: Any, recipe: Recipe, workload: Workload, size: int) -> Separation:
        self._tries -= 1
        passes = self._passes
        with passes.around_step():
            found = separation(
                lambda piece: passes.loss_of(passes.arrived(piece)),
                batch,
                parts=passes.parts,
                parameters=[weight for weight in self._parameters if weight.requires_grad],
                split=passes.split,
                size=size,
                loss_weight=passes.loss_weight,
                quiet=workload.batch_norm or workload.dropout,
                scale=self._scale,
                rough=recipe.precision != "fp32",
            )
        self._failed = found.failed
        if found.separates is not None:
            self._tries = 0
        return found


def _forgotten(_: Any) -> Any:
    return None
