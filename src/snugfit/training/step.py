"""The training step: the whole effective batch in, one update done. Real training and the simulator run this very code."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torch import Tensor

from snugfit.errors import warn
from snugfit.phases import phase
from snugfit.techniques.base import WeightedPiece
from snugfit.training.claimed import check_claimed, is_due
from snugfit.training.health import Statistics
from snugfit.training.late_reads import LateReads
from snugfit.training.microbatch_check import MicrobatchCheck
from snugfit.training.order import order_of
from snugfit.training.passes import Passes, Pieces
from snugfit.training.step_outputs import KeptOutputs
from snugfit.training.switch import Rebuild, trained_by_others

if TYPE_CHECKING:
    from snugfit.techniques.shard.reducer import Reducer
    from snugfit.training.trainer import Trainer


class Step:
    """One update on a whole batch by the recipe in place, or nothing."""

    def __init__(self, passes: Passes, rebuild: Rebuild, check: MicrobatchCheck, statistics: Statistics) -> None:
        """Takes the parts of a trainer that only its steps need."""
        self._passes, self._rebuild, self.check = passes, rebuild, check
        self.statistics, self.late_reads = statistics, LateReads(passes)

    def take(self, trainer: Trainer, step: int, batch: Any, kept: KeptOutputs | None) -> Tensor:
        """Takes one update by the trainer's recipe, or leaves everything as it was; returns the loss of the batch.

        `step`: its number, from 1.
        `kept`: takes the model's outputs, where they are wanted.
        """
        update, ranks = trainer.update, self._passes.ranks
        trainer.phase = "data"
        if kept is not None:
            kept.begin()
        pieces = self._passes.pieces(batch, trainer.recipe, every=kept is not None)
        if len(pieces) > 1 and self.check.pending and ranks is None:
            trainer.found_out(self.check.learn(batch, trainer.recipe, trainer.workload))
        self.late_reads.check(batch, trainer.recipe, update.gradients.named)
        try:
            self.statistics.remember(step)
            self._rebuild.handle.pass_on()
            update.begin(step, trainer.lr_factor)
            with self._passes.around_step():
                reducer = update.gradients.reducer
                again = functools.partial(self._passes.once_more, pieces[0][0])
                with nullcontext() if reducer is None else reducer.watched(again, first=not trainer.steps_done):
                    marked = pieces if reducer is None else self._marked(trainer, pieces, reducer)
                    loss = order_of(self._passes.techniques)(
                        marked,
                        functools.partial(self._forward_pass, trainer, kept),
                        functools.partial(self._backward_pass, trainer),
                    )
                self.check.say_what_is_open(trainer.recipe)
                if kept is not None:
                    kept.join(self._passes.shares(pieces), mean=ranks is not None)
                if ranks is not None:
                    self._note_draws(trainer, drew=reducer is not None and reducer.first_steps.drew)
                    loss = ranks.total(loss)
                trainer.phase = "optimizer"
                with phase("optimizer"):
                    update.finish(step, loss)
                if ranks is not None:
                    self.statistics.even_out(ranks)
        except BaseException as error:
            # Whatever ended the step, Ctrl-C included: nothing of it stays.
            update.abandon()
            self.statistics.restore(step)
            told = self.check.said_of(error, batch, trainer.recipe) if len(pieces) > 1 else error
            if told is not error:
                raise told from error
            raise
        trainer.steps_done = step
        self._rebuild.handle.stepped()
        return loss

    def _note_draws(self, trainer: Trainer, *, drew: bool) -> None:
        """Notes whether several processes draw random numbers, each for its share of the batch."""
        if drew and not trainer.workload.dropout:
            trainer.found_out(trainer.workload.replace(dropout=True))
            warn(
                "the model draws random numbers in its passes. Each process draws them for its share of the batch, so the "
                "update is not that of one process, as with dropout."
            )

    def _marked(self, trainer: Trainer, pieces: Pieces, reducer: Reducer) -> Iterator[WeightedPiece]:
        """Yields the pieces; before the last one, those who add gradients up are told that it is the last."""
        from snugfit.techniques.shard.apply import last_backward

        for number, piece in enumerate(pieces, 1):
            last = number == len(pieces)
            reducer.adds_up = last or trainer.recipe.reduce_gradients == "microbatch"
            last_backward(trainer.model, trainer.recipe, last=last)
            yield piece

    def _forward_pass(self, trainer: Trainer, kept: KeptOutputs | None, batch: Any) -> Tensor:
        trainer.phase = "data"
        with phase("data"):
            batch = self._passes.arrived(batch)
        trainer.phase = "forward"
        with phase("forward"):
            return self._passes.loss_of(batch, kept)

    def _backward_pass(self, trainer: Trainer, loss: Tensor) -> None:
        update = trainer.update
        trainer.phase = "backward"
        with phase("backward"):
            if self._rebuild.by_name and trainer.ranks is None and is_due(trainer.steps_done + 1):
                claimed = [*update.gradients.named.values(), *trained_by_others(trainer.model)]
                check_claimed(loss, claimed, trainer.workload.optimizer, self._passes.parts)
            update.judge(loss)
            with self.late_reads.watched(trainer.recipe, update.gradients.named), update.gradients.own_backward():
                (update.scaler.scale(loss) if update.scaler else loss).backward()  # type: ignore[no-untyped-call]
