"""A callback for Lightning's Trainer: memory predicted, measured, and told when it grows."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from snugfit.interop.lightning_job import LightningJob
from snugfit.interop.recorded_training import estimate_job
from snugfit.interop.watched_training import WatchedTraining
from snugfit.recorder.registration import is_simulation
from snugfit.techniques.batches import tensors_of

try:
    _callbacks: Any = importlib.import_module("lightning.pytorch.callbacks")
except ImportError:
    _callbacks = importlib.import_module("pytorch_lightning.callbacks")

if TYPE_CHECKING:
    from snugfit.simulator.prediction import Estimate

_HINT = " Lower the batch size and raise accumulate_grad_batches, or take precision='bf16-mixed'."


class MemoryCallback(WatchedTraining, _callbacks.Callback):  # type: ignore[misc]
    """Predicts the memory of a fit before it trains, measures it meanwhile, and shows one beside the other.

    The prediction takes the LightningModule's own steps on a simulated device, with the widest samples of its loader and
    with its validation; it takes some seconds. Memory that grows step by step is an alarm (a `SnugfitWarning`) that names
    what grows. After training `report` has it all. On a card torch's peak counters are reset at every step.

    Args:
        budget: Memory that the training may take, such as "8GiB", or bytes; None: a card's own memory.
        on_exceed: What happens where more is predicted: "warn", or "stop" before anything was trained.
        predict: Whether it is predicted.
        leak_alarm: Whether memory that grows is told.
        assume: What to take for values that simulated tensors do not have, as for `snugfit.estimate`.

    Raises:
        InputError: Budget, on_exceed or assume cannot be read.
    """

    _steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Predicts, and begins to measure."""
        if is_simulation():  # the script itself is what is predicted
            return

        def ask(device: str) -> Estimate:
            job = LightningJob(trainer, pl_module)
            return estimate_job(job, type(pl_module).__name__, device=device, assume=self._assume)

        place = trainer.strategy.root_device
        self._predict(ask, place, _HINT)
        self._steps = trainer.global_step
        self._watch.begin(place, [pl_module], tensors_of([list(one.state.values()) for one in trainer.optimizers]))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Takes a step down, if the optimizer has taken one."""
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self._watch.step_ended()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Notes that an evaluation begins."""
        self._watch.evaluation_begins()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Notes that an evaluation ended."""
        self._watch.evaluation_ended()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Shows predicted beside measured."""
        self._finish()
