"""What is known of a training's memory when it has ended: predicted beside measured, step by step, and what grew."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.units import format_bytes

if TYPE_CHECKING:
    from snugfit.interop.survivors import Survivors
    from snugfit.simulator.prediction import Estimate

_NAMED = 3
"""Places of a leak that its message names."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Leak:
    """Memory that grows at each step."""

    step: int
    """The step at whose end it was certain."""
    per_step_bytes: int
    """Bytes that a step adds."""
    from_bytes: int
    """What was alive before the steps that were looked at."""
    to_bytes: int
    """What was alive after them."""
    rows: tuple[Survivors, ...]
    """Which tensors stay, the most bytes first; empty where it is no tensor that an operator made."""
    holder: str
    """What in Python holds them; empty where nothing was found."""

    def __str__(self) -> str:
        """Says it in words."""
        size, start, end = (format_bytes(size) for size in (self.per_step_bytes, self.from_bytes, self.to_bytes))
        said = f"memory grows step by step, by {size} a step (from {start} to {end} by step {self.step})."
        if not self.rows:
            return (
                f"{said} No tensors stay that operators made in these steps: look for arrays, lists and caches that the "
                "training loop adds to."
            )
        named = "; ".join(f"{format_bytes(row.per_step_bytes)} made by {_short(row)}" for row in self.rows[:_NAMED])
        more = f"; and {len(self.rows) - _NAMED} more places" if len(self.rows) > _NAMED else ""
        held = f" They are held by {self.holder}." if self.holder else ""
        return (
            f"{said} Each step leaves {named}{more}.{held} What only its numbers are kept for is kept as loss.item() or "
            "tensor.detach().cpu(): a tensor with a graph keeps the whole step alive."
        )


def _short(row: Survivors) -> str:
    where = f" in {row.module}" if row.module else ""
    path, _, number = row.line.rpartition(":")
    line = f" at {Path(path).name}:{number}" if row.line else ""
    return f"{row.operator.removeprefix('aten.').partition('.')[0]}{where}{line}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemoryReport:
    """Predicted beside measured."""

    device: str
    """Type of the device: cpu, cuda."""
    predicted_bytes: int | None
    """Most bytes of tensors at a time, predicted; None without a prediction."""
    measured_bytes: int
    """Most bytes of tensors at a time in the steps and evaluations that were measured."""
    predicted_reserved_bytes: int | None
    """What the card's allocator was predicted to reserve; None on the CPU."""
    measured_reserved_bytes: int | None
    """What it did reserve at most; None on the CPU."""
    steps: int
    """Optimizer steps that were taken."""
    step_bytes: dict[int, int]
    """Step, from 1 -> most bytes in it; on the CPU of the first steps at least."""
    evaluation_bytes: int
    """Most bytes in an evaluation; 0 without one."""
    budget_bytes: int | None
    """The budget; None without one."""
    leak: Leak | None
    """What grew at each step; None where nothing did."""
    not_predicted: str
    """Why there is no prediction, empty where there is one or none was asked for."""
    estimate: Estimate | None = dataclasses.field(repr=False, compare=False, default=None)
    """The whole prediction."""

    @property
    def ratio(self) -> float | None:
        """Predicted over measured; None where one of them is missing."""
        if self.predicted_bytes is None or not self.measured_bytes:
            return None
        return self.predicted_bytes / self.measured_bytes

    def to_mapping(self) -> dict[str, Any]:
        """Returns it as plain data, the estimate left out."""
        from snugfit.fields import as_data

        plain: dict[str, Any] = as_data(self, without=("estimate",))
        return plain

    def __str__(self) -> str:
        """Returns one line: predicted, measured, budget."""
        measured = f"measured {format_bytes(self.measured_bytes)}"
        parts = [measured]
        if self.predicted_bytes is not None:
            off = f" ({self.ratio - 1:+.1%})" if self.ratio is not None else ""
            parts.insert(0, f"predicted {format_bytes(self.predicted_bytes)}{off}")
        elif self.not_predicted:
            parts.append(f"not predicted: {self.not_predicted}")
        if self.predicted_reserved_bytes is not None and self.measured_reserved_bytes:
            predicted, real = format_bytes(self.predicted_reserved_bytes), format_bytes(self.measured_reserved_bytes)
            parts.append(f"reserved: predicted {predicted}, measured {real}")
        if self.budget_bytes is not None:
            parts.append(f"budget {format_bytes(self.budget_bytes)}")
        if self.leak is not None:
            parts.append(f"grew by {format_bytes(self.leak.per_step_bytes)} a step")
        seen = len(self.step_bytes)
        over = f"{self.steps} steps" if seen == self.steps else f"{self.steps} steps, {seen} of them measured"
        return f"memory: {', '.join(parts)} ({over})"
