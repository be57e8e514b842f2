"""What a finished run came to: the document of `snugfit train --json`, and in Python the model itself. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from snugfit.fidelity import Fidelity
from snugfit.recipe import Recipe
from snugfit.report.notebook import ShownAsCard
from snugfit.runs.processes import Processes

if TYPE_CHECKING:
    from torch import nn

    from snugfit.runs.loop import Loop
    from snugfit.runs.loop_result import LoopResult
    from snugfit.runs.request import Request
    from snugfit.runs.run_device import RunDevice

_SHOWN_FILES = 10
"""Number of unreadable files that the result names; it counts all of them."""
_PEAKS = ("peak_reserved_bytes", "peak_tensor_bytes", "peak_allocated_bytes")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult(ShownAsCard):
    """The result of a run."""

    model: nn.Module | None = None
    """What was trained, its adapters merged; None where the run was finished before and nothing was built."""
    recipe: Recipe
    """How the step was held in memory, in the end."""
    fidelity: Fidelity
    """How close that is to plain training."""
    predicted: Mapping[str, Any] | None
    """What a plan or a prediction promised, under the names of `measured`; None without one."""
    measured: Mapping[str, int | None]
    """On the CPU `peak_tensor_bytes`, `host_tensor_bytes` and `rss_bytes`; on CUDA `peak_allocated_bytes`,
    `peak_reserved_bytes` and `nvml_bytes`."""
    seconds: float | None
    """Wall time of steps, evaluation and checkpoints; None of a rehearsal."""
    samples_per_second: float | None
    """Samples trained per second of training steps; None of a rehearsal."""
    metrics: Mapping[str, float | None]
    """`train_loss`, and loss and metrics of `validation_` and `test_` data; None where there was no such data."""
    steps: int
    """Updates done."""
    run_dir: str
    """Where everything is."""
    document: Mapping[str, Any]
    """All of that as `snugfit train --json` prints it, and the rest."""
    first: bool = True
    """Whether the first of its processes was on this machine, or is this one; the others print nothing."""

    @classmethod
    def of(cls, document: Mapping[str, Any], model: nn.Module | None = None, *, first: bool = True) -> TrainResult:
        """Reads the document of a run.

        Args:
            document: As in `summary.json`.
            model: What was trained.
            first: Whether this process, or one of this machine, is the run's first.
        """
        names = ("predicted", "measured", "seconds", "samples_per_second", "metrics", "steps", "run_dir")
        return cls(
            model=model,
            recipe=Recipe.from_mapping(document["recipe"]),
            fidelity=Fidelity(**document["fidelity"]),
            document=document,
            first=first,
            **{name: document[name] for name in names},
        )

    def to_mapping(self) -> dict[str, Any]:
        """Returns what `snugfit train --json` prints."""
        return dict(self.document)

    def __str__(self) -> str:
        from snugfit.report.train_card import train_card

        return train_card(self.document)


def measured_by_all(processes: Processes, mine: dict[str, Any]) -> dict[str, Any]:
    """Returns the measurement of the process that took most, with those of each as `ranks`; alone, its own."""
    every = processes.all(mine)
    peak = next(name for name in _PEAKS if mine.get(name) is not None)
    fullest = {name: value for name, value in max(every, key=lambda one: one[peak]).items() if name != "busy_seconds"}
    return fullest if processes.count == 1 else {**fullest, "ranks": every}


def summary_of(
    loop: Loop,
    request: Request,
    where: RunDevice,
    measured: Mapping[str, Any],
    result: LoopResult,
    processes: Processes,
) -> dict[str, Any]:
    """Returns the document; several processes each call it."""
    import torch

    trainer, task = loop.trainer, loop.task
    workload = trainer.workload.replace(max_steps=request.settings.max_steps)
    found = dataclasses.asdict(result)
    del found["stopped_by"]
    if where.card:  # wall time says nothing of a card that is not there
        found |= dict.fromkeys(("seconds", "samples_per_second", "loading"))
    return {
        "recipe": trainer.recipe.to_mapping(),
        "workload": {**request.to_mapping(), "settings": workload.to_mapping()},
        "fidelity": dataclasses.asdict(trainer.fidelity),
        "measured": dict(measured),
        **found,
        "main_metric": {"name": task.main_metric, "higher_is_better": task.higher_is_better},
        "steps_per_epoch": loop.steps_per_epoch,
        "unreadable": _unreadable(loop, processes),
        "device": where.name if where.card else str(trainer.device),
        "rehearsal": where.card is not None,
        "run_dir": str(loop.run_dir.path),
        "torch_version": str(torch.__version__),
    }


def _unreadable(loop: Loop, processes: Processes) -> dict[str, Any]:
    """The files that any process could not read."""
    found = list(dict.fromkeys(name for names in processes.all(list(loop.data.unreadable)) for name in names))
    return {"files": len(found), "first": found[:_SHOWN_FILES]}
