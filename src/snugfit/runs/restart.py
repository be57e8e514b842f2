"""Memory that ran out in one of several processes: all begin again from what was saved, by the next recipe that needs less.

A process that has no memory for a step cannot go back alone: the others have sent their gradients already, or wait for its
own. It notes in the run directory what it was doing, and ends; so do the others. When the run is started again (by
`launching.py`, or by hand with `--resume`), the recipe is chosen that one process would have gone on with
(`training/fallbacks.py`). Microbatches, checkpoints and the like change no update, so the weights come out as if there had
been memory enough.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.errors import warn
from snugfit.recipe import Recipe
from snugfit.runs.run_files import SHORTAGES
from snugfit.techniques.batch_share import largest_share
from snugfit.workload import Workload

if TYPE_CHECKING:
    from snugfit.training.trainer import Trainer


def note(path: Path, trainer: Trainer, cause: str) -> None:
    """Notes in the run directory that this process ran out of memory, and what it was doing."""
    assert trainer.ranks is not None
    attempt = [os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")]
    _append(
        path,
        {
            "attempt": "/".join(attempt) if any(attempt) else str(os.getppid()),
            "process": trainer.ranks.number,
            "phase": trainer.phase,
            "step": trainer.steps_done + 1,
            "device": trainer.device.type,
            "recipe": trainer.recipe.to_mapping(),
            "cause": cause,
        },
    )


def notes(path: Path) -> list[dict[str, Any]]:
    """Returns the notes in order, without a last line that was cut short."""
    found = []
    try:
        lines = (path / SHORTAGES).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def recipe_after(path: Path, recipe: Recipe, fallbacks: tuple[Recipe, ...], workload: Workload) -> Recipe:
    """Returns the recipe to go on with, and says so where memory ran out since the last was chosen."""
    told = notes(path)
    since = [one for one in told if "chosen" in one]
    pending = told[told.index(since[-1]) + 1 :] if since else told
    if not pending:
        return recipe
    import torch

    from snugfit.training.fallbacks import Failure, Fallbacks, described

    # One failure for each attempt, however many processes it hit.
    attempts = {one["attempt"]: one for one in told if "attempt" in one}
    failures = [
        Failure(phase=one["phase"], recipe=Recipe.from_mapping(one["recipe"]), cause=one["cause"])
        for one in attempts.values()
    ]
    choices, chosen = Fallbacks(failures[0].recipe, workload, fallbacks), None
    share = largest_share(recipe, workload)
    for number in range(1, len(failures) + 1):
        chosen = choices.next_recipe(failures[:number], share)
    last = pending[-1]
    if chosen is None:
        raise choices.gave_up(last["step"], failures, share, torch.device(last["device"]))
    warn(
        f"step {last['step']} ran out of memory in {last['phase']} on process {last['process']} of {workload.ranks}: "
        f"{last['cause']} All begin again from what was saved, with "
        f"{described(chosen, failures[-1].recipe, share)}."
    )
    _append(path, {"chosen": chosen.to_mapping()})
    return chosen


def _append(path: Path, line: Mapping[str, Any]) -> None:
    with (path / SHORTAGES).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
