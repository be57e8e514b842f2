"""Ladders by name: what stands in `ladder_presets.yaml`, as complete training runs. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from snugfit.errors import InputError, did_you_mean
from snugfit.ladder import Ladder, Rung
from snugfit.recipe import Recipe
from snugfit.workload import Workload
from snugfit.yaml_files import read_table

RANDOM_STEPS = 8
"""Updates of a rung on random tokens where nothing is said: enough for its memory and its speed."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PresetRung:
    """One rung of a preset."""

    name: str
    """Short name, for tables and for choosing."""
    change: str
    """What it does, in a few words."""
    recipe: Mapping[str, Any]
    """Fields of the recipe that are not plain."""
    workload: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Training settings that differ from the preset's."""
    published: str = ""
    """What its source measured, with the unit of its source."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A ladder by name."""

    name: str
    """How it is asked for."""
    config: Mapping[str, Any]
    """The model, as transformers' config.json has it."""
    task: str
    """text-classification or causal-lm."""
    seq_len: int
    """Tokens of a text at most."""
    card: str
    """The card that estimates are for."""
    workload: Mapping[str, Any]
    """Training settings of all rungs."""
    rungs: tuple[PresetRung, ...]
    """At least one, the first being plain."""

    def ladder(self, settings: Mapping[str, Any], *, random_data: bool) -> Ladder:
        """Returns the rungs as complete training runs.

        Args:
            settings: Training settings that were given; they hold for all rungs.
            random_data: Whether there is no real data, so that a few updates say it all.

        Returns:
            The ladder.

        Raises:
            RecipeError: The settings are wrong, or contradict a rung.
        """
        short = {"max_steps": RANDOM_STEPS} if random_data and not {"epochs", "max_steps"} & set(settings) else {}
        rungs = tuple(
            Rung(
                name=rung.name,
                change=rung.change,
                note=f"published: {rung.published}." if rung.published else "",
                recipe=Recipe.from_mapping(rung.recipe),
                workload=Workload.from_mapping({**self.workload, **rung.workload, **short, **settings}),
            )
            for rung in self.rungs
        )
        return Ladder(rungs=rungs, first=rungs[0], left_out={})


PRESETS: Mapping[str, Preset] = {
    name: Preset(name=name, **{**row, "rungs": tuple(PresetRung(**rung) for rung in row["rungs"])})
    for name, row in read_table("ladder_presets.yaml").items()
}


def preset_named(name: str) -> Preset:
    """Returns a preset.

    Args:
        name: How it is asked for.

    Returns:
        The preset.

    Raises:
        InputError: There is none of that name.
    """
    if name not in PRESETS:
        raise InputError(f"preset {name!r} is unknown; {did_you_mean(name, PRESETS)}")
    return PRESETS[name]
