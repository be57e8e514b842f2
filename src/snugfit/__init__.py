"""Train any PyTorch model in the memory you have.

Importing snugfit imports no torch; each name below is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from snugfit.errors import (
    CannotSimulateError,
    DoesNotFitError,
    InputError,
    OutOfMemoryError,
    RecipeError,
    SnugfitError,
    SnugfitWarning,
    TrainingError,
    TrainingStopped,
)
from snugfit.fidelity import Fidelity, fidelity
from snugfit.recipe import Recipe
from snugfit.workload import Workload

if TYPE_CHECKING:
    from snugfit.interop.own_loop_watch import watch_memory
    from snugfit.interop.trainer_estimate import estimate_for
    from snugfit.interop.trainer_plan import plan_for
    from snugfit.planner.plan import plan
    from snugfit.planner.plan_result import Plan
    from snugfit.runs.result import TrainResult
    from snugfit.runs.train import train
    from snugfit.simulator.estimate import estimate
    from snugfit.simulator.prediction import Estimate
    from snugfit.training.adapter_file import load_adapter, merge_adapter, save_adapter
    from snugfit.training.apply import Applied, apply
    from snugfit.training.ema import AveragedWeights
    from snugfit.training.prepare import prepare
    from snugfit.training.trainer import Trainer

__version__ = "0.1.0"

_LATE = {
    "Applied": "snugfit.training.apply",
    "AveragedWeights": "snugfit.training.ema",
    "Estimate": "snugfit.simulator.prediction",
    "Plan": "snugfit.planner.plan_result",
    "TrainResult": "snugfit.runs.result",
    "Trainer": "snugfit.training.trainer",
    "apply": "snugfit.training.apply",
    "estimate": "snugfit.simulator.estimate",
    "estimate_for": "snugfit.interop.trainer_estimate",
    "load_adapter": "snugfit.training.adapter_file",
    "load_ipython_extension": "snugfit.cli.notebook",
    "merge_adapter": "snugfit.training.adapter_file",
    "plan": "snugfit.planner.plan",
    "plan_for": "snugfit.interop.trainer_plan",
    "prepare": "snugfit.training.prepare",
    "save_adapter": "snugfit.training.adapter_file",
    "train": "snugfit.runs.train",
    "watch_memory": "snugfit.interop.own_loop_watch",
}

__all__ = [
    "Applied",
    "AveragedWeights",
    "CannotSimulateError",
    "DoesNotFitError",
    "Estimate",
    "Fidelity",
    "InputError",
    "OutOfMemoryError",
    "Plan",
    "Recipe",
    "RecipeError",
    "SnugfitError",
    "SnugfitWarning",
    "TrainResult",
    "Trainer",
    "TrainingError",
    "TrainingStopped",
    "Workload",
    "apply",
    "estimate",
    "estimate_for",
    "fidelity",
    "load_adapter",
    "merge_adapter",
    "plan",
    "plan_for",
    "prepare",
    "save_adapter",
    "train",
    "watch_memory",
]


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    raise AttributeError(f"module 'snugfit' has no attribute {name!r}")
