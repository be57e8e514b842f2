"""The recipe that an export is of: from a YAML file, a plan's or run's JSON, or a run directory. Imports no torch."""

from __future__ import annotations

import dataclasses
import re
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

_OTHERWISE_ELSEWHERE = ("batch_size", "lr", "epochs", "clip_norm")
"""Settings whose defaults are not those of other tools."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StoredRun:
    """A recipe that was kept, with the training settings that it is for."""

    run: Run
    """The two."""
    request: Request | None
    """What the run trained; None where the recipe is no run's."""
    model: str | None = None
    """The model that it is for, as it was typed; None where the file does not say it."""
    seq_len: int | None = None
    """Tokens of a sample, likewise."""
    unsaid: tuple[str, ...] = ()
    """Settings that nobody gave and that other tools have other defaults for."""


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
        run = Run(kept.read_recipe(), request.settings.replace(**settings))
        typed = request.model if isinstance(request.model, str) else None
        return StoredRun(run=run, request=request, model=typed, seq_len=request.seq_len)
    is_json = path.suffix.lower() == ".json"
    document = _document(path) if is_json else {}
    storage, given = by_owner(settings)
    workload = Workload.from_mapping({"batch_size": batch_size, **_settings(document), **given})
    if is_json:
        recipe = Recipe.from_mapping({**document.get("recipe", document), **storage})
    else:
        recipe = Recipe.from_yaml(path, **storage)
    model, seq_len = _subject(document)
    said = {*given, *Workload.from_mapping(_settings(document)).to_mapping(defaults=False)}
    unsaid = tuple(name for name in _OTHERWISE_ELSEWHERE if name not in said)
    return StoredRun(run=Run(recipe, workload), request=None, model=model, seq_len=seq_len, unsaid=unsaid)


def _document(path: Path) -> dict[str, Any]:
    """The JSON of `snugfit plan`, `snugfit train`, `snugfit estimate` or `plan.json`, or a JSON recipe."""
    named = f"recipe file {str(path)!r}"
    document = read_json(path, named, instead="Give what `snugfit plan --json` printed.")
    if not isinstance(document, dict) or not isinstance(document.get("recipe", document), dict):
        raise InputError(
            f"{named} holds no recipe. Give what `snugfit plan --json` printed, or `snugfit plan -o` wrote."
        )
    return document


def _settings(document: Mapping[str, Any]) -> dict[str, Any]:
    for outer, inner in (("budgets", "workload"), ("workload", "settings")):  # of a plan, of a run
        kept = document.get(outer)
        found = kept.get(inner) if isinstance(kept, dict) else None
        if isinstance(found, dict):
            return found
    return {name: document[name] for name in ("batch_size", "gpus", "nodes") if document.get(name)}  # of an estimate


def _subject(document: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """The language model of a plan where it has weights, not only a config; and the tokens of a sample."""
    estimate = document.get("estimate")
    if not isinstance(estimate, dict) or not str(estimate.get("title")).startswith("hf:"):
        return None, None
    tokens = re.fullmatch(r"\d+ x (\d+)", str(estimate.get("batch_shape")))
    model = None if estimate["title"].endswith(".json") else estimate["title"]
    return model, None if tokens is None else int(tokens[1])
