"""A callback for transformers' Trainer, and so for TRL's trainers: memory predicted, measured, and told when it grows."""

from __future__ import annotations

import sys
import types
from typing import Any

from transformers import TrainerCallback

from snugfit.interop.recorded_training import modules_in
from snugfit.interop.trainer_estimate import estimate_for
from snugfit.interop.trainer_job import given_optimizer
from snugfit.interop.watched_training import WatchedTraining
from snugfit.recorder.registration import is_simulation
from snugfit.techniques.batches import tensors_of

_HINT = " snugfit.plan_for(trainer, budget=...) looks for TrainingArguments that fit."


class MemoryCallback(WatchedTraining, TrainerCallback):
    """Predicts a Trainer's memory before it trains, measures it meanwhile, and shows one beside the other.

    The prediction takes the Trainer's own steps on a simulated device, with the widest samples of its data set and with its
    evaluation; it takes some seconds. Memory that grows step by step is an alarm (a `SnugfitWarning`) that names what
    grows. After training `report` has it all. On a card torch's peak counters are reset at every step.

    Args:
        budget: Memory that the training may take, such as "8GiB", or bytes; None: a card's own memory.
        on_exceed: What happens where more is predicted: "warn", or "stop" before anything was trained.
        predict: Whether it is predicted.
        leak_alarm: Whether memory that grows is told.
        assume: What to take for values that simulated tensors do not have, as for `snugfit.estimate`.

    Raises:
        InputError: Budget, on_exceed or assume cannot be read.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Predicts, and begins to measure."""
        if is_simulation():  # the script itself is what is predicted
            return
        trainer = _caller()
        self._predict(lambda device: estimate_for(trainer, device=device, assume=self._assume), args.device, _HINT)
        optimizer = given_optimizer(trainer)
        held = [] if optimizer is None else list(tensors_of(list(optimizer.state.values())))
        self._watch.begin(args.device, modules_in(vars(trainer)), held)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Takes a step down; an evaluation that follows is told before it begins."""
        self._watch.step_ended()
        if control.should_evaluate:
            self._watch.evaluation_begins()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Notes an evaluation that follows."""
        if control.should_evaluate:
            self._watch.evaluation_begins()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Notes that an evaluation ended."""
        self._watch.evaluation_ended()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Shows predicted beside measured."""
        self._finish()


def _caller() -> Any:
    """The Trainer that calls; callbacks are given its parts only, and its loss and its data are methods of its own."""
    from transformers import Trainer

    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            return owner
        frame = frame.f_back
    raise RuntimeError("MemoryCallback was called by no transformers.Trainer")
