"""What `snugfit.plan_for` returns: the changed `TrainingArguments`, and what was simulated to find them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from snugfit.report.notebook import ShownAsCard
from snugfit.report.plan_card import memory_in_words
from snugfit.techniques.levels import Level
from snugfit.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from snugfit.recording.recording import Recording
    from snugfit.simulator.prediction import Estimate


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """Arguments that were simulated."""

    changes: Mapping[str, Any]
    """Argument -> its value, where it is another one than the Trainer has."""
    need_bytes: int | None = None
    """The smallest memory in which it goes through, CUDA's context apart; None where it cannot be simulated."""
    total_bytes: int | None = None
    """What it reserves where memory is not short, and CUDA's context; on cpu what its tensors take."""
    step_seconds: float | None = None
    """Predicted seconds of a step of the whole effective batch, without evaluation."""
    peak_phase: str
    """The phase in which the peak falls; evaluation, say."""
    refusal: str = ""
    """Why it cannot be simulated."""
    recording: Recording | None = dataclasses.field(repr=False, compare=False, default=None)
    """What was recorded."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainerPlan(ShownAsCard):
    """The fastest arguments that were found to fit a budget."""

    arguments: Any
    """A copy of the Trainer's `TrainingArguments`, changed. Build the Trainer again with them."""
    changes: Mapping[str, tuple[Any, Any]]
    """Argument -> what it was, and what it is now; empty where nothing has to change."""
    estimate: Estimate
    """What they are predicted to take, evaluation included."""
    fidelity: Level
    """How close training is to that of the Trainer as it is."""
    need_bytes: int
    """The smallest memory in which it goes through, CUDA's context apart."""
    budget_bytes: int
    """The budget; CUDA's context and the margin come out of it."""
    margin_bytes: int
    """Part of the budget that stays free because predictions err."""
    step_seconds: float
    """Predicted seconds of a step of the whole effective batch."""
    as_it_is: Tried
    """The Trainer's arguments as they are."""
    tried: tuple[Tried, ...]
    """All that was simulated, in order."""
    notes: tuple[str, ...]
    """What to know about the changes."""

    def __str__(self) -> str:
        """Returns it as text for a console."""
        rows = [f"  {name}: {before} -> {now}" for name, (before, now) in self.changes.items()]
        was, taken_off = self.as_it_is.total_bytes, self.margin_bytes + (self.estimate.context_bytes or 0)
        left = self.budget_bytes - taken_off - self.need_bytes
        memory = memory_in_words(self.estimate.total_bytes, self.budget_bytes, left)
        lines = [
            "TrainingArguments that change:" if rows else "Nothing has to change.",
            *rows,
            f"predicted within {format_bytes(self.budget_bytes)}: {memory} (as it is: {format_bytes(was or 0)}), "
            f"peak in {self.estimate.peak_phase}",
            f"a step takes {format_seconds(self.step_seconds)}, fidelity {self.fidelity}, {len(self.tried)} simulated",
        ]
        return "\n".join([*lines, *self.notes])

    def __repr__(self) -> str:
        return f"TrainerPlan(changes={dict(self.changes)}, need_bytes={self.need_bytes})"
