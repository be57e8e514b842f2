"""What it costs that a tool does some fields of a recipe in its own way: both simulated, and each difference alone."""

from __future__ import annotations

import dataclasses
from typing import Any

from snugfit.errors import SnugfitError
from snugfit.fields import as_data, as_typed
from snugfit.interop.export_tables import differences
from snugfit.interop.exported import Export
from snugfit.recipe import Recipe
from snugfit.run import Run
from snugfit.simulator.estimate import estimate_named
from snugfit.simulator.request import NamedModel
from snugfit.units import format_bytes


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one field costs."""

    field: str
    """The field of the recipe."""
    asked: str
    """What was asked for."""
    done: str
    """What the tool does."""
    more_bytes: int | None
    """How much more the fullest GPU takes when only this is done so; None where it cannot be done alone."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What an export costs in memory."""

    device: str
    """The card."""
    recipe_bytes: int
    """What the recipe takes on the fullest GPU."""
    export_bytes: int
    """What the tool takes that follows the file."""
    fits: bool
    """Whether the latter fits the card."""
    fields: tuple[Cost, ...]
    """Each field that the tool does otherwise."""

    def to_mapping(self) -> dict[str, Any]:
        """Returns plain data."""
        plain: dict[str, Any] = as_data(self)
        return plain

    def __str__(self) -> str:
        sizes = f"{format_bytes(self.recipe_bytes)} by the recipe, {format_bytes(self.export_bytes)} by this file"
        lines = [f"Simulated on {self.device}: {sizes}, which {'fits' if self.fits else 'does not fit'}."]
        for cost in self.fields:
            more = "cannot be simulated alone"
            if cost.more_bytes is not None:
                more = f"{format_bytes(abs(cost.more_bytes))} {'less' if cost.more_bytes < 0 else 'more'}"
            lines.append(f"- {cost.field}={cost.done} in place of {cost.asked}: {more}")
        return "\n".join(lines)


def costs_of(named: NamedModel, run: Run, export: Export, device: str) -> Costs:
    """Simulates a recipe and what a tool makes of it, of a model by name on a card."""

    def total(recipe: Recipe) -> tuple[int, bool]:
        found = estimate_named(named, recipe=recipe, workload=run.workload, device=device)
        return found.total_bytes, all(card.fits for card in found.devices)

    asked, (done, fits) = total(run.recipe)[0], total(export.follows)
    rows = []
    for name, before, after in differences(run.recipe, export.follows):
        try:
            more = total(run.recipe.replace(**{name: after}))[0] - asked
        except SnugfitError:  # the others of the recipe need this one to be as it was
            more = None
        rows.append(Cost(field=name, asked=as_typed(before), done=as_typed(after), more_bytes=more))
    return Costs(device=device, recipe_bytes=asked, export_bytes=done, fits=fits, fields=tuple(rows))
