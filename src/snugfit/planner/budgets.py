"""What a plan has to say about other budgets: it keeps what its search has found, and answers without another simulation.

The search has simulated recipes that need more or less than the plan; for every budget the one that it would choose among
them is kept. Between them lie recipes that it only composed; those that promise to be faster are kept as well, and are told
apart. Imports no torch, so that an answer takes no longer than reading a file.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snugfit.errors import DoesNotFitError, InputError, in_words, option, warn
from snugfit.fidelity import Fidelity, fidelity
from snugfit.fields import as_data
from snugfit.json_files import read_json
from snugfit.planner.leaner import ever_leaner
from snugfit.planner.margin import Margin
from snugfit.recipe import Recipe
from snugfit.report.notebook import ShownAsCard
from snugfit.report.words import recipe_in_words
from snugfit.units import MIB, format_bytes, parse_bytes
from snugfit.workload import Workload

VERSION = 1
"""Of what is kept; plans of another one are not answered from."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BudgetPoint:
    """A recipe that is the answer to some budgets."""

    recipe: Recipe
    """The recipe."""
    from_bytes: int
    """The least memory, margin and CUDA's context taken off, for which it is the answer."""
    need_bytes: int
    """The smallest memory in which it goes through, CUDA's context apart."""
    step_seconds: float
    """Predicted seconds of a step."""
    simulated: bool
    """Whether both are from a simulation of this very recipe; otherwise they are composed from other recipes'."""
    total_bytes: int | None = None
    """What it reserves where memory is not short, with CUDA's context; None where it is composed."""
    host_bytes: int | None = None
    """Host memory that it takes; None where it is composed."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BudgetAnswer(ShownAsCard):
    """What a plan answers for another budget; `snugfit.prepare` takes it as it takes a plan."""

    title: str
    """The model's name."""
    device: str
    """The card."""
    batch_shape: str
    """The batch in words."""
    budget_bytes: int
    """Memory there is; CUDA's context and the margin come out of it."""
    margin_bytes: int
    """Part of the budget that stays free because predictions err."""
    recipe: Recipe
    """The best recipe that was simulated."""
    need_bytes: int
    """The smallest memory in which it goes through, as simulated, CUDA's context apart."""
    total_bytes: int
    """What it reserves where memory is not short, as simulated, with CUDA's context."""
    host_bytes: int
    """Host memory that it takes."""
    step_seconds: float
    """Seconds of a step, as simulated."""
    slowdown: float
    """Time of a step over that of the fastest recipe that was simulated."""
    fidelity: Fidelity
    """How close it is to plain training."""
    fallbacks: tuple[Recipe, ...]
    """Simulated recipes of the same kind that need less memory, fastest first."""
    traits: Mapping[str, bool]
    """What a check of model and loss has found."""
    faster: BudgetPoint | None
    """A recipe that promises to fit and to be faster, and was composed, not simulated; None where none does."""

    def explain(self) -> str:
        """Returns the answer as text for a console."""
        from snugfit.report.budget_card import budget_card

        return budget_card(self)

    def __str__(self) -> str:
        return self.explain()

    def to_mapping(self) -> dict[str, Any]:
        """Returns the answer as plain data."""
        plain: dict[str, Any] = as_data(self)
        return plain

    def to_json(self) -> str:
        """Returns the answer as one JSON document."""
        return json.dumps(self.to_mapping(), indent=2, allow_nan=False)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Budgets:
    """All that it takes to answer another budget of the same work."""

    title: str
    """The model's name."""
    device: str
    """The card."""
    batch_shape: str
    """The batch in words."""
    workload: Workload
    """What is learned."""
    card_bytes: int | None
    """Memory of the card; no budget is larger. None: no limit."""
    context_bytes: int
    """What CUDA's context takes of a budget."""
    margin_share: float
    """Part of a budget that stays free because predictions err."""
    least_margin_bytes: int
    """What stays free of any budget."""
    points: tuple[BudgetPoint, ...]
    """Simulated recipes, each the search's choice from its `from_bytes` on to the next one's."""
    composed: tuple[BudgetPoint, ...]
    """Recipes between them that promise more and were not simulated, least memory first."""
    may_change: bool = True
    """Whether a run may change over to another recipe; not in a loop of one's own."""
    traits: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    """What a check of model and loss has found."""
    options: tuple[str, ...] = ()
    """Of a model by name: what is typed behind the name for its batch to have this shape."""
    version: int = VERSION
    """Of this form."""

    def at(self, budget: str | int) -> BudgetAnswer:
        """Returns the answer for a budget, as `Plan.at`."""
        size = parse_bytes(budget, what="budget")
        if self.card_bytes is not None and size > self.card_bytes:
            warn(
                f"the budget of {format_bytes(size)} is more than {self.device} has; answered for its "
                f"{format_bytes(self.card_bytes)}."
            )
            size = self.card_bytes
        capacity = self._margin.room_bytes(size, self.context_bytes)
        fitting = [point for point in self.points if point.from_bytes <= capacity]
        if not fitting:
            raise self._too_little(size, capacity)
        best = fitting[-1]
        assert best.total_bytes is not None and best.host_bytes is not None  # simulated
        promising = [
            one for one in self.composed if one.need_bytes <= capacity and one.step_seconds < best.step_seconds
        ]
        return BudgetAnswer(
            title=self.title,
            device=self.device,
            batch_shape=self.batch_shape,
            budget_bytes=size,
            margin_bytes=self._margin.bytes_of(size),
            recipe=best.recipe,
            need_bytes=best.need_bytes,
            total_bytes=best.total_bytes,
            host_bytes=best.host_bytes,
            step_seconds=best.step_seconds,
            slowdown=best.step_seconds / min(point.step_seconds for point in self.points),
            fidelity=fidelity(best.recipe, self.workload),
            fallbacks=self._fallbacks(best),
            traits=self.traits,
            faster=min(promising, key=lambda one: one.step_seconds, default=None),
        )

    @property
    def _margin(self) -> Margin:
        return Margin(share=self.margin_share, source="", least_bytes=self.least_margin_bytes)

    def budget_for(self, capacity_bytes: int) -> int:
        """Returns the smallest budget, in whole MiB, of which so much is left.

        Args:
            capacity_bytes: Memory, margin and CUDA's context taken off.
        """
        return self._margin.budget_for(capacity_bytes, self.context_bytes)

    def _too_little(self, budget_bytes: int, capacity_bytes: int) -> DoesNotFitError:
        least = self.points[0]
        enough = self.budget_for(least.from_bytes)
        guessed = next((one for one in self.composed if one.need_bytes <= capacity_bytes), None)
        guess = "" if guessed is None else f" It was composed that this may fit: {recipe_in_words(guessed.recipe)}."
        found = DoesNotFitError(
            f"nothing that was simulated for this plan of {self.title} fits {format_bytes(budget_bytes)} on {self.device}; "
            f"the least that does is {enough // MIB} MiB: {recipe_in_words(least.recipe)}.{guess} A search for less may "
            f"find more: plan anew, with the model and {option('budget')} {max(budget_bytes // MIB, 1)}MiB."
        )
        level = fidelity(least.recipe, self.workload).level
        found.smallest_budget_bytes = {level: enough}  # type: ignore[attr-defined]
        return found

    def _fallbacks(self, best: BudgetPoint) -> tuple[Recipe, ...]:
        if not self.may_change:
            return ()
        known = ((point.step_seconds, point.need_bytes, point.recipe) for point in self.points)
        return ever_leaner(known, best.recipe, best.need_bytes, self.workload)

    def to_mapping(self) -> dict[str, Any]:
        """Returns it as plain data."""
        plain: dict[str, Any] = as_data(self)
        return plain

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Budgets:
        """Returns what `to_mapping` has made; `KeyError`, `TypeError` or `ValueError` for anything else."""
        points = {
            name: tuple(BudgetPoint(**{**one, "recipe": Recipe.from_mapping(one["recipe"])}) for one in given[name])
            for name in ("points", "composed")
        }
        options = tuple(map(str, given.get("options", ())))
        made = cls(**{**given, **points, "workload": Workload.from_mapping(given["workload"]), "options": options})
        numbers: list[Any] = [made.context_bytes, made.least_margin_bytes, made.margin_share, made.card_bytes or 0]
        for point in (*made.points, *made.composed):
            numbers += [point.from_bytes, point.need_bytes, point.step_seconds]
        for point in made.points:
            numbers += [point.total_bytes, point.host_bytes]
        if not made.points or not all(type(number) in (int, float) and 0 <= number < 2**63 for number in numbers):
            raise ValueError("a number is none, or no recipe is in it")
        if made.margin_share >= 1:
            raise ValueError("the margin is all of the budget")
        return made


def budgets_in(path: Path) -> Budgets:
    """Returns what the JSON of a plan keeps, for `--from`; `InputError` where it is none, or of another version."""
    named = f"--from {str(path)!r}"
    instead = "Give what `snugfit plan MODEL ... --json` printed, or `-o plan.json` wrote."
    return budgets_of(read_json(path, named, instead=instead, missing=instead), named, instead=instead)


def budgets_of(document: Any, named: str, *, instead: str = "") -> Budgets:
    """Returns what the document of a plan keeps; `named` and `instead` are as for `read_json`."""
    kept = document.get("budgets") if isinstance(document, dict) else None
    if not isinstance(kept, dict):
        raise InputError(f"{named} is no plan, or one that keeps nothing for other budgets. {instead}".rstrip())
    if (version := kept.get("version")) != VERSION:
        raise InputError(
            f"{named} was written by another version of snugfit (form {version}; this one reads {VERSION}). Plan anew."
        )
    try:
        return Budgets.from_mapping(kept)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{named} was altered, or written by another version of snugfit ({in_words(error)}). Plan anew."
        ) from error
