"""Before the first update by microbatches: do they add up to the batch? The person is told before anything is wrong.

A recipe that was given goes on with a warning and is labelled `different` from then on; the recipe of a plan that promised
otherwise is refused. Nothing is left of it after that: one look at a flag each step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.errors import InputError, SnugfitWarning
from snugfit.recipe import Recipe
from snugfit.techniques.microbatch.apply import LossWeight, Split
from snugfit.training.separation import Separation, separation
from snugfit.workload import Workload

TRIES = 3
"""Steps that try the check, where the first ones cannot say (a gradient that is zero)."""
_SCALE = 2.0**12
"""Factor of a loss whose gradients are fp16."""


class MicrobatchCheck:
    """The check of one run, until it is done."""

    def __init__(
        self,
        workload: Workload,
        *,
        parts: Sequence[object],
        parameters: Sequence[nn.Parameter],
        split: Split,
        loss_weight: LossWeight,
        scaler: torch.amp.GradScaler | None,
        promised: bool,
    ) -> None:
        """Takes what the check needs.

        Args:
            workload: What is known before.
            parts: Model, loss, forward and split.
            parameters: What training changes.
            split: How a batch is cut.
            loss_weight: How losses of microbatches combine.
            scaler: Loss scaling, or None.
            promised: Whether a plan has promised that microbatches change nothing.
        """
        self._parts, self._parameters, self._split, self._weight = parts, parameters, split, loss_weight
        self._scale = 1.0 if scaler is None else _SCALE
        self._promised = promised
        self._tries = TRIES if workload.coupled_samples is None else 0

    @property
    def pending(self) -> bool:
        """Whether the check is still to be made."""
        return self._tries > 0

    def learn(self, loss_of: Callable[[Any], Tensor], batch: Any, recipe: Recipe, workload: Workload) -> Workload:
        """Checks before an update by microbatches.

        Args:
            loss_of: The loss of some samples, with its graph.
            batch: The batch of this step.
            recipe: It cuts this batch.
            workload: What is known so far.

        Returns:
            The workload with what was found.

        Raises:
            InputError: A plan has promised that microbatches change nothing, and they do.
        """
        assert recipe.microbatch_size is not None
        found = self._look(loss_of, batch, recipe, workload, recipe.microbatch_size)
        told = [] if found.separates is not False else [f"{found.sentence} {found.advice}"]
        if found.random and not workload.dropout:
            told.append("Two runs of the same samples differ: random numbers are drawn, and pieces draw others.")
        if told and self._promised:
            raise InputError(
                f"microbatch_size={recipe.microbatch_size} was planned as changing nothing, and it changes the update: "
                f"{' '.join(told)} Nothing was updated. Plan again with coupled_samples=True, or with allow='different'."
            )
        if told:
            warnings.warn(
                f"microbatch_size={recipe.microbatch_size} changes the update of this model and loss: {' '.join(told)}",
                SnugfitWarning,
                stacklevel=5,
            )
        return workload.replace(**found.traits())

    def before_halving(
        self, loss_of: Callable[[Any], Tensor], batch: Any, recipe: Recipe, workload: Workload
    ) -> Workload:
        """Checks with two samples, where memory has run out and smaller microbatches may be a way out.

        Args:
            loss_of: The loss of some samples, with its graph.
            batch: The batch that did not fit.
            recipe: It was tried with.
            workload: What is known so far.

        Returns:
            The workload with what was found.
        """
        return workload.replace(**self._look(loss_of, batch, recipe, workload, 2).traits())

    def _look(
        self, loss_of: Callable[[Any], Tensor], batch: Any, recipe: Recipe, workload: Workload, size: int
    ) -> Separation:
        self._tries -= 1
        found = separation(
            loss_of,
            batch,
            parts=self._parts,
            parameters=self._parameters,
            split=self._split,
            size=size,
            loss_weight=self._weight,
            quiet=workload.batch_norm or workload.dropout,
            scale=self._scale,
            rough=recipe.precision != "fp32",
        )
        if found.separates is not None:
            self._tries = 0
        return found
