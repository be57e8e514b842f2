"""The recipe that an export is of: from a YAML file, a plan's or run's JSON, or a run directory. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snugfit.errors import InputError
from snugfit.json_files import read_json
from snugfit.recipe import Recipe
from snugfit.run import Run, by_owner
from snugfit.runs.request import Request
from snugfit.runs.run_files import RunFiles, holds_run
from snugfit.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StoredRun:
    """A recipe that was kept, with the training settings that it is for."""

    run: Run
    """The two."""
    request: Request | None
    """What the run trained; None where the recipe is no run's."""


def stored_run(path: Path, settings: Mapping[str, Any], *, batch_size: int) -> StoredRun:
    """Reads a recipe.

    Args:
        path: A YAML file of a recipe, the JSON of `snugfit plan` or `snugfit train`, or a run directory.
        settings: Training settings that were given; they go before those of a run or a plan.
        batch_size: Samples of an update where neither says it.

    Returns:
        What is there.

    Raises:
        InputError: It is none of these.
        RecipeError: Listing every mistake in it.
    """
    if path.is_dir():
        if not holds_run(path):
            raise InputError(
                f"{str(path)!r} is a folder without a run in it. Give a run directory, or a file with a recipe."
            )
        kept = RunFiles(path)
        request = kept.read_request()
        return StoredRun(run=Run(kept.read_recipe(), request.settings.replace(**settings)), request=request)
    fields, kept_settings = _of_json(path) if path.suffix.lower() == ".json" else (None, {})
    storage, given = by_owner(settings)
    workload = Workload.from_mapping({"batch_size": batch_size, **kept_settings, **given})
    recipe = Recipe.from_yaml(path, **storage) if fields is None else Recipe.from_mapping({**fields, **storage})
    return StoredRun(run=Run(recipe, workload), request=None)


def _of_json(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The recipe in the JSON of `snugfit plan`, `snugfit train` or `plan.json`, or a JSON recipe; and its settings."""
    named = f"recipe file {str(path)!r}"
    document = read_json(path, named, instead="Give what `snugfit plan --json` printed.")
    recipe = document.get("recipe", document) if isinstance(document, dict) else None
    if not isinstance(recipe, dict):
        raise InputError(
            f"{named} holds no recipe. Give what `snugfit plan --json` printed, or `snugfit plan -o` wrote."
        )
    for outer, inner in (("budgets", "workload"), ("workload", "settings")):  # of a plan, of a run
        kept = document.get(outer)
        if isinstance(kept, dict) and isinstance(kept.get(inner), dict):
            return recipe, kept[inner]
    return recipe, {}
