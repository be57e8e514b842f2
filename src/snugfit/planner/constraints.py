"""What a plan must keep to: the budget, the fidelity that may be given up, fields that are pinned or forbidden.

Everything that people type is read here, with all mistakes in one error. Imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from snugfit.device_kinds import is_here
from snugfit.errors import InputError, RecipeError, did_you_mean, note
from snugfit.fidelity import fidelity
from snugfit.fields import field_infos, from_text
from snugfit.recipe import Recipe
from snugfit.run import Run, contradictions
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.levels import LEVELS, Level
from snugfit.units import format_bytes, parse_bytes
from snugfit.workload import Workload


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Constraints:
    """What a plan must keep to."""

    allow: frozenset[Level] = frozenset({"exact"})
    """Levels of fidelity that fields of the plan's own choice may have; `exact` is always among them."""
    pins: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Recipe field -> the value it must have."""
    forbidden: frozenset[str] = frozenset()
    """Recipe fields that stay as plain training has them."""
    host_budget_bytes: int | None = None
    """Host memory that a plan may take; None: no limit."""
    needed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Recipe field -> the value without which the workload cannot be trained, or does not fit."""
    needed_as: str = ""
    """What is wrong without it."""

    def base(self) -> Recipe:
        """Returns plain training with the pinned fields, and with those that are needed."""
        return Recipe.from_mapping({**self.needed, **self.pins})

    def for_workload(self, workload: Workload) -> Constraints:
        """Returns constraints under which the workload is possible, where plain training with the pins is not."""
        refused = " ".join(contradictions(self.base(), workload))
        return next(self.last_resorts(workload, refused), self) if refused else self

    def last_resorts(self, workload: Workload, why: str) -> Iterator[Constraints]:
        """Yields the same with what techniques offer where nothing else will do, and that makes the workload possible."""
        base = self.base()
        for row in TECHNIQUES:
            for changes in row.planning.last_resort(base, workload) if row.planning.last_resort is not None else ():
                if all(map(self.is_free, changes)) and Run.is_possible(base.replace(**changes), workload):
                    yield dataclasses.replace(self, needed={**self.needed, **changes}, needed_as=why)

    @property
    def widest(self) -> Level:
        """The level that gives up most of those allowed."""
        return max(self.allow, key=LEVELS.index)

    def up_to(self, level: Level) -> Constraints:
        """Returns the same with all levels up to one allowed; as it is, where that is no wider than what is allowed."""
        if LEVELS.index(level) <= LEVELS.index(self.widest):
            return self  # "different" alone leaves "rounding" out
        return dataclasses.replace(self, allow=self.allow | set(LEVELS[: LEVELS.index(level) + 1]))

    def is_free(self, field: str) -> bool:
        """Returns whether the planner may choose a recipe field."""
        return field not in self.pins and field not in self.forbidden

    def refusal(self, recipe: Recipe, workload: Workload) -> str | None:
        """Returns one sentence that says why a recipe is not allowed, None where it is."""
        plain = Recipe()
        for name, value in self.pins.items():
            if getattr(recipe, name) != value:
                return f"{name} is pinned to {value}."
        for name in self.forbidden:
            if getattr(recipe, name) != getattr(plain, name):
                return f"{name} is forbidden."
        try:
            reasons = fidelity(recipe, workload).reasons
        except RecipeError as error:
            return error.problems[0]
        for name, (level, reason) in reasons.items():
            if (
                level not in self.allow
                and name not in self.pins
                and not self._asked_for(name, (level, reason), workload)
            ):
                return f"{name}={getattr(recipe, name, '')} is {level}, which is not allowed: {reason}"
        return None

    def _asked_for(self, name: str, reason: tuple[Level, str], workload: Workload) -> bool:
        """Whether plain training with the pins has it too: several GPUs have other batch statistics than one."""
        return workload.ranks > 1 and fidelity(self.base(), workload).reasons.get(name) == reason

    def note_host(self, needed_bytes: int) -> None:
        """Says so where nobody gave the host's memory and this machine has less free than a plan needs."""
        from snugfit.process_memory import free_host_bytes

        free = free_host_bytes()
        if self.host_budget_bytes is None and free is not None and needed_bytes > free:
            needed = format_bytes(needed_bytes)
            note(f"the plan needs {needed} of host memory, and this machine has {format_bytes(free)} free.")


def constraints_from(
    *,
    allow: str | Iterable[str] | None = "exact",
    pin: Mapping[str, Any] | None = None,
    forbid: Iterable[str] | None = None,
    host_budget: str | int | None = None,
    given: Mapping[str, Any] | None = None,
    device: Any = None,
) -> Constraints:
    """Reads what a person gave; a `RecipeError` lists every mistake in pins and bans.

    `allow`: levels of fidelity, as words or one text with commas.
    `host_budget`: host memory, as text with a unit or in bytes; None: what is free, and no limit for a card by its
    name, in whose machine nobody knows what is free.
    `given`: recipe fields that were given otherwise; each is a pin, too.
    """
    infos = field_infos(Recipe)
    problems: list[str] = []
    pins: dict[str, Any] = {}
    known = dict(given or {})
    for key, value in (*known.items(), *(pin or {}).items()):
        name = _field(key, problems)
        if name is None:
            continue
        if name in known and str(known[name]) != str(value):
            problems.append(f"{name} is pinned to {value} and given as {known[name]}; give one of the two.")
        pins[name] = from_text(infos[name], value) if isinstance(value, str) else value
    forbidden = set()
    for key in [forbid] if isinstance(forbid, str) else forbid or ():
        name = _field(key, problems)
        if name is not None:
            forbidden.add(name)
    for name in sorted(forbidden & pins.keys()):
        problems.append(f"{name} is pinned to {pins[name]} and forbidden; give one of the two.")
    try:
        made = Recipe.from_mapping(pins)
    except RecipeError as error:
        problems.extend(error.problems)
    if problems:
        raise RecipeError(problems, subject="pins and bans of the plan")
    return Constraints(
        allow=_levels(allow),
        pins={name: getattr(made, name) for name in pins},
        forbidden=frozenset(forbidden),
        host_budget_bytes=_host_budget(host_budget, device),
    )


def _host_budget(given: str | int | None, device: Any) -> int | None:
    from snugfit.process_memory import free_host_bytes

    if given is not None:
        return parse_bytes(given, what="host budget")
    return free_host_bytes() if is_here(device) else None


def _field(key: Any, problems: list[str]) -> str | None:
    name = str(key).strip().replace("-", "_")
    infos = field_infos(Recipe)
    if name in infos:
        return name
    problems.append(f"{str(key)!r} is no field of a recipe; {did_you_mean(name, infos)}")
    return None


def _levels(allow: str | Iterable[str] | None) -> frozenset[Level]:
    words = allow.split(",") if isinstance(allow, str) else list(allow or ())
    found: set[Level] = {"exact"}
    for word in (word.strip() for word in words):
        if not word:
            continue
        if word not in LEVELS:
            raise InputError(f"allow is {word!r}, which is no level of fidelity; {did_you_mean(word, LEVELS)}")
        found.add(word)
    return frozenset(found)
