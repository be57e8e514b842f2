"""`snugfit.estimate_for`: what a built Trainer takes, predicted by its own steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from snugfit.interop.recorded_training import estimate_job
from snugfit.interop.trainer_job import TrainerJob
from snugfit.values.assumptions import AssumeArgument

if TYPE_CHECKING:
    from snugfit.simulator.estimate import DeviceArgument
    from snugfit.simulator.prediction import Estimate


def estimate_for(trainer: Any, *, device: DeviceArgument = None, assume: AssumeArgument = None) -> Estimate:
    """Predicts what a built Trainer takes: three of its own steps and an evaluation, with the widest samples of its data.

    The Trainer is not changed and nothing is trained.

    Args:
        trainer: A transformers.Trainer that is built, TRL's trainers included.
        device: A card's name (`snugfit devices`), `cpu`, `local`, or None (or `all`): every card of the table.
        assume: What to take for values that simulated tensors do not have, as for `snugfit.estimate`.

    Returns:
        The estimate.

    Raises:
        InputError: The Trainer cannot train here, or the device is unknown.
        CannotSimulateError: Its step needs values, which simulated tensors do not have.
    """
    return estimate_job(TrainerJob(trainer), type(trainer.model).__name__, device=device, assume=assume)
