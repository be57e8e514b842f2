"""Fidelity of a recipe against a workload: is the update still the one of plain training?

`exact` is the same update up to floating-point reordering, `rounding` the same algorithm with fewer bits somewhere,
`different` another algorithm or another batch. The verdict always names the fields that lower it. Imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from snugfit.recipe import Recipe
from snugfit.run import Run
from snugfit.techniques import OPTIMIZER_NAMES, TECHNIQUES
from snugfit.techniques.declaration import said
from snugfit.techniques.levels import LEVELS, Level
from snugfit.techniques.microbatch import splits
from snugfit.workload import CUSTOM_OPTIMIZER, Workload

_COMPARED = (
    "lr",
    "lr_schedule",
    "warmup_steps",
    "clip_norm",
    "weight_decay",
    "momentum",
    "betas",
    "no_decay",
    "freeze",
)
"""Training settings that are another training where they differ from the reference."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Fidelity:
    """How close a recipe stays to plain training, and which fields take it away from there."""

    level: Level
    """The worst of all fields."""

    reasons: dict[str, tuple[Level, str]]
    """Field -> its level and a sentence; only fields that are not exact."""

    unchecked: dict[str, str] = dataclasses.field(default_factory=dict)
    """Field -> what is taken for granted about it until somebody has checked it."""

    def __str__(self) -> str:
        named = [name for name, (level, _) in self.reasons.items() if level == self.level]
        named += [f"{name} not checked yet" for name in self.unchecked]
        return f"{self.level} ({', '.join(named)})" if named else self.level


def fidelity(recipe: Recipe, workload: Workload, reference: Workload | None = None) -> Fidelity:
    """Returns how close training a workload by a recipe stays to training it plainly.

    Args:
        recipe: How the step is held in memory.
        workload: What is learned.
        reference: The workload of the plain run to compare with, where it is another one (a ladder's first rung);
            None: the same workload.

    Returns:
        The level and, for each field that is not exact, its level and the reason.

    Raises:
        RecipeError: The recipe contradicts the workload.
    """
    Run(recipe, workload)
    reasons: dict[str, tuple[Level, str]] = {}
    for name, level, reason in _lowered(recipe, workload, reference or workload):
        if name not in reasons or LEVELS.index(level) > LEVELS.index(reasons[name][0]):
            reasons[name] = (level, reason)
    worst = max((LEVELS.index(level) for level, _ in reasons.values()), default=0)
    return Fidelity(level=LEVELS[worst], reasons=reasons, unchecked=_unchecked(recipe, workload))


def _unchecked(recipe: Recipe, workload: Workload) -> dict[str, str]:
    known = workload.coupled_samples is not None or workload.batch_norm or workload.dropout
    if known or not splits(recipe, workload):
        return {}
    return {
        "microbatch_size": "whether the loss of a batch is the weighted sum of the losses of its microbatches has not been "
        "checked; the first step checks it, and says so where it is not."
    }


def _lowered(recipe: Recipe, workload: Workload, reference: Workload) -> Iterator[tuple[str, Level, str]]:
    for row in TECHNIQUES:
        for sentence, (level, when) in row.lowers.items():
            for reason in said({sentence: when}, recipe, workload):
                yield row.fields[0], level, reason
    chosen = recipe.optimizer or workload.optimizer
    named = OPTIMIZER_NAMES.get(chosen)
    algorithm = chosen if named is None else named.holds or chosen
    if algorithm != reference.optimizer:
        own = "the optimizer that is given" if reference.optimizer == CUSTOM_OPTIMIZER else reference.optimizer
        yield "optimizer", "different", f"{chosen} is another algorithm than {own}."
    elif named is not None and named.level != "exact":
        yield "optimizer", named.level, named.reason.format(reference.optimizer)
    if workload.batch_size != reference.batch_size:
        yield "batch_size", "different", f"a batch of {workload.batch_size} is not one of {reference.batch_size}."
    for name in _COMPARED:
        if getattr(workload, name) != getattr(reference, name):
            yield name, "different", f"{name} is {getattr(workload, name)}, not {getattr(reference, name)}."
