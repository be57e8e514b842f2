"""The tuning of a run: whether its first steps find out which recipe is the fastest, and what is kept and told of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from snugfit.errors import note
from snugfit.json_files import json_text
from snugfit.measure.meter import Meter
from snugfit.recipe import Recipe
from snugfit.report.train_card import recipes_tried
from snugfit.report.words import recipe_in_words
from snugfit.runs.chosen import Chosen
from snugfit.runs.run_device import RunDevice
from snugfit.runs.run_dir import RunDirectory
from snugfit.training.trainer import Trainer
from snugfit.training.tuning import Tuning, steps_for

LONGER = 3
"""A run takes at least so many times the steps of its tuning; a shorter one keeps the plan's recipe."""


def with_rivals_to_time(chosen: Chosen, where: RunDevice, steps: int) -> Chosen:
    """Returns the same without rivals where seconds mean nothing, or the run is too short to gain by timing them."""
    if not chosen.to_be_tuned:
        return chosen
    if where.card is not None:
        note("a rehearsed card has no seconds, so no recipe is timed: the plan's is kept.")
    elif steps >= LONGER * steps_for(1 + len(chosen.rivals)):
        return chosen
    return dataclasses.replace(chosen, rivals=())


def watch_tuning(trainer: Trainer, chosen: Chosen, run_dir: RunDirectory, meter: Meter) -> Tuning | None:
    """Has what a trainer's tuning finds kept in the run directory and told; returns it, None where nothing is timed."""
    tuning = trainer.tuning
    if tuning is None:
        return None

    def keep(ended: Tuning) -> None:
        found = ended.to_mapping()
        assert ended.kept is not None and chosen.plan is not None
        run_dir.note_tuned(ended.kept, json_text({**json.loads(chosen.plan), "tuned": found}))
        note(in_words(found))

    tuning.on_end, tuning.changing = keep, meter.changing
    return tuning


def in_words(found: Mapping[str, Any]) -> str:
    """Returns what was tried and found, as a sentence."""
    kept = recipe_in_words(Recipe.from_mapping(found["recipe"]))
    return f"{found['steps']} steps timed {'; '.join(recipes_tried(found))}. The run goes on with {kept}."
