"""What a finished run came to: the document of `snugfit train --json`, and in Python the model itself. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from snugfit.fidelity import Fidelity
from snugfit.recipe import Recipe

if TYPE_CHECKING:
    from torch import nn


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
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

    @classmethod
    def of(cls, document: Mapping[str, Any], model: nn.Module | None = None) -> TrainResult:
        """Reads the document of a run.

        Args:
            document: As in `summary.json`.
            model: What was trained.
        """
        names = ("predicted", "measured", "seconds", "samples_per_second", "metrics", "steps", "run_dir")
        return cls(
            model=model,
            recipe=Recipe.from_mapping(document["recipe"]),
            fidelity=Fidelity(**document["fidelity"]),
            document=document,
            **{name: document[name] for name in names},
        )

    def to_mapping(self) -> dict[str, Any]:
        """Returns what `snugfit train --json` prints."""
        return dict(self.document)

    def __str__(self) -> str:
        from snugfit.report.train_card import train_card

        return train_card(self.document)
