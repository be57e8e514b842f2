"""A plan for a script: the recipe that was found, and the lines that say it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from snugfit.json_files import json_text
from snugfit.planner.plan_result import Plan
from snugfit.report.notebook import ShownAsCard


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ScriptLines:
    """Lines for one place of a file."""

    file: str | None
    """The file; None where no place was found."""
    line: int | None
    """The line before which they go."""
    text: str
    """The lines."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ScriptPlan(ShownAsCard):
    """A plan for a script, and what to paste into it."""

    plan: Plan
    """The plan; its recipe is what the lines say."""
    script: str
    """The script."""
    arguments: tuple[str, ...]
    """Its own arguments."""
    style: str
    """What the lines are made of: snugfit or torch."""
    diff: str
    """The lines as a unified diff, for `patch -p0`; empty where nothing has to change."""
    lines: tuple[ScriptLines, ...]
    """The same without their surroundings."""
    total_bytes: int
    """What the script takes as it is, as `estimate.total_bytes`."""
    step_seconds: float
    """Predicted seconds of its step as it is."""
    notes: tuple[str, ...] = ()
    """What the plan has left alone."""

    def to_mapping(self) -> dict[str, Any]:
        """Returns the plan as plain data: that of any plan, and what belongs to the script."""
        own = {name: getattr(self, name) for name in ("script", "style", "diff")}
        return {
            **self.plan.to_mapping(),
            **own,
            "arguments": list(self.arguments),
            "lines": [dataclasses.asdict(one) for one in self.lines],
            "as_it_is": {"total_bytes": self.total_bytes, "step_seconds": self.step_seconds},
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """Returns the plan as one JSON document."""
        return json_text(self.to_mapping())

    def write_diff(self, path: Path) -> None:
        """Writes the diff to a file."""
        path.write_bytes(self.diff.encode())

    def __str__(self) -> str:
        from snugfit.report.script_plan_card import script_plan_card

        return script_plan_card(self)
