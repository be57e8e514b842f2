"""Recipes that promise about as much, timed where they run: a run's first steps go by each of them in turn.

All of them fit, give the update of the same fidelity and may follow each other between two steps, so no step is wasted: a
wrong prediction of time costs a few steps that were slower than they could have been. Each recipe takes a few steps in a
row; the first of them, in which caches fill and libraries choose their kernels, does not count, and of the others the
median does. Batches of different lengths are compared by seconds an element. The plan's recipe stays unless another one is
faster by more than noise, and it is timed once more before it goes: the machine may have been busy the first time.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from snugfit.device_kinds import wait_for, work_clock
from snugfit.recipe import Recipe
from snugfit.training.fallbacks import elements
from snugfit.training.out_of_memory import free_memory

if TYPE_CHECKING:
    from snugfit.training.trainer import Trainer

COUNTED = 3
"""Steps of each recipe whose median is its time."""
WARM_UP = 1
"""Steps of each recipe before those; the run's own first step comes on top."""
ONCE_MORE = 2
"""Steps that count when the plan's recipe is timed again."""
STEPS_EACH = 1 + WARM_UP + COUNTED
"""Steps of one recipe at most."""
FASTER = 0.97
"""Part of the plan's time that another recipe may take at most to take its place."""


@dataclasses.dataclass(kw_only=True, slots=True)
class TimedRecipe:
    """A recipe that is timed."""

    recipe: Recipe
    """The recipe."""
    predicted_seconds: float
    """Of a step."""
    times: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    """Seconds of each step that counts, and its seconds an element of the batch."""
    left_out: str = ""
    """Why it was not timed to the end; empty where it was."""

    @property
    def seconds(self) -> float | None:
        """Median seconds of a step; None where it was not timed to the end."""
        return None if self.left_out or not self.times else statistics.median(one for one, _ in self.times)

    @property
    def pace(self) -> float:
        """Median seconds an element; of what was timed twice, the lesser."""
        paces = [one for _, one in self.times]
        again = paces[COUNTED:]
        return min(map(statistics.median, [paces[:COUNTED], *([again] if again else [])]))


def steps_for(candidates: int) -> int:
    """Returns how many steps it takes at most to time so many recipes."""
    return 1 + candidates * (WARM_UP + COUNTED) + WARM_UP + ONCE_MORE


class Tuning:
    """Takes the first steps of a trainer by several recipes in turn, and goes on with the fastest."""

    def __init__(self, candidates: Sequence[tuple[Recipe, float]]) -> None:
        """Begins with the first one.

        `candidates`: recipes with their predicted seconds, the plan's first.
        """
        self.candidates = [TimedRecipe(recipe=recipe, predicted_seconds=seconds) for recipe, seconds in candidates]
        self.on_end: Callable[[Tuning], None] = lambda _: None
        """Called once, when the recipe to go on with is in place."""
        self.changing: Callable[[], AbstractContextManager[None]] = nullcontext
        """Surrounds each change of the recipe, for whoever measures the run."""
        self.kept: Recipe | None = None
        """The recipe that the run goes on with; None until that is found."""
        self.steps = 0
        """Steps that were taken while recipes were timed."""
        self._number = 0
        self._warm_up = WARM_UP + 1

    @contextmanager
    def timed(self, trainer: Trainer, batch: Any) -> Iterator[None]:
        """Stands around a step: times it, and afterwards puts the next recipe in place where this one's steps are done."""
        trainer.finish()
        wait_for(trainer.device)
        clock = work_clock(trainer.device)
        began = clock()
        yield
        trainer.finish()  # an update may still be under way, which belongs to the step
        wait_for(trainer.device)
        seconds = clock() - began
        if trainer.ranks is not None:  # all of them wait for the slowest, and all must choose alike
            seconds = max(one for (one,) in trainer.ranks.agree([seconds]))
        self.steps += 1
        candidate = self.candidates[self._number]
        if trainer.recipe != candidate.recipe:  # memory ran out, or the budget was exceeded: no time for trials
            candidate.left_out = "another recipe took its place, as where memory runs out"
            self._end(trainer, trainer.recipe)
        elif self._warm_up:
            self._warm_up -= 1
        else:
            candidate.times.append((seconds, seconds / max(elements(batch), 1)))
            if len(candidate.times) == COUNTED:
                self._next(trainer)
            elif len(candidate.times) == COUNTED + ONCE_MORE:
                self._decide(trainer)

    def _next(self, trainer: Trainer) -> None:
        while self._number + 1 < len(self.candidates):
            self._number += 1
            self._warm_up = WARM_UP
            candidate = self.candidates[self._number]
            if self._goes_by(trainer, candidate):
                return
            candidate.left_out = "it could not be put in place"
        plan = self.candidates[0]
        if self._fastest is plan or not self._goes_by(trainer, plan):
            self._decide(trainer)
        else:
            self._number, self._warm_up = 0, WARM_UP

    @property
    def _fastest(self) -> TimedRecipe:
        """The plan's recipe, unless another one is clearly faster."""
        plan, *others = [one for one in self.candidates if not one.left_out]
        best = min(others, key=lambda one: one.pace, default=plan)
        return best if best.pace < FASTER * plan.pace else plan

    def _goes_by(self, trainer: Trainer, candidate: TimedRecipe) -> bool:
        with self.changing():
            there = trainer.try_recipe(candidate.recipe)
            free_memory(trainer.device)  # blocks that are cached for the recipe before may fit nothing of this one
        return there

    def _decide(self, trainer: Trainer) -> None:
        best = self._fastest
        if best.recipe != trainer.recipe:
            with self.changing():
                trainer.change_recipe(best.recipe)
        self._end(trainer, best.recipe)

    def _end(self, trainer: Trainer, kept: Recipe) -> None:
        self.kept, trainer.tuning = kept, None
        self.on_end(self)

    def to_mapping(self) -> dict[str, Any]:
        """Returns what was tried, predicted and measured, as plain data; no recipe is kept while it goes on."""
        return {
            "steps": self.steps,
            "faster_by": round(1 - FASTER, 4),
            "recipe": None if self.kept is None else self.kept.to_mapping(),
            "tried": [
                {
                    "recipe": one.recipe.to_mapping(defaults=False),
                    "predicted_seconds": one.predicted_seconds,
                    "seconds": one.seconds,
                    "left_out": one.left_out,
                    "kept": one.recipe == self.kept,
                }
                for one in self.candidates
                if one.times or one.left_out
            ],
        }
