"""Ladders by name: what stands in `ladder_presets.yaml`, as complete training runs. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from snugfit.errors import InputError, did_you_mean
from snugfit.ladder import Ladder, Rung
from snugfit.recipe import Recipe
from snugfit.workload import Workload
from snugfit.yaml_files import read_table

RANDOM_STEPS = 8
"""Updates of a rung on random data where nothing is said: enough for its memory and its speed."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A ladder by name."""

    name: str
    """How it is asked for."""
    config: Mapping[str, Any] | None = None
    """The model, as transformers' config.json has it; None: it is `model`."""
    model: str | None = None
    """The model by its name."""
    model_args: Sequence[str] = ()
    """Arguments of its constructor, as typed."""
    task: str
    """image-classification, text-classification or causal-lm."""
    seq_len: int | None = None
    """Tokens of a text at most; None where it reads none."""
    image_size: int | None = None
    """Side of the images; None where it sees none."""
    card: str
    """The card that estimates are for."""
    workload: Mapping[str, Any]
    """Training settings of all rungs."""
    rungs: tuple[Mapping[str, Any], ...]
    """At least one, the first being plain: `name`, `change` in a few words, the fields of `recipe` that are not plain, those
    of `workload` that differ from the preset's, and what its source has measured, as `published`."""

    def ladder(self, settings: Mapping[str, Any], *, random_data: bool) -> Ladder:
        """Returns the rungs as complete training runs; with random data, a few updates say it all."""
        short = {"max_steps": RANDOM_STEPS} if random_data and not {"epochs", "max_steps"} & set(settings) else {}
        rungs = tuple(
            Rung(
                name=row["name"],
                change=row["change"],
                note=f"published: {row['published']}." if "published" in row else "",
                recipe=Recipe.from_mapping(row["recipe"]),
                workload=Workload.from_mapping({**self.workload, **row.get("workload", {}), **short, **settings}),
            )
            for row in self.rungs
        )
        return Ladder(rungs=rungs, first=rungs[0], left_out={})


PRESETS: Mapping[str, Preset] = {
    name: Preset(name=name, **row) for name, row in read_table("ladder_presets.yaml").items()
}


def preset_named(name: str) -> Preset:
    """Returns a preset by its name; `InputError` where there is none."""
    if name not in PRESETS:
        raise InputError(f"preset {name!r} is unknown; {did_you_mean(name, PRESETS)}")
    return PRESETS[name]
