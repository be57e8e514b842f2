"""The space of recipes: what may be chosen for each dimension, for this workload and under these constraints.

What may be tried is declared by the techniques. Nothing is judged here twice: whether a recipe makes
sense is asked of `Recipe`, whether it fits the workload and what fidelity it costs of `fidelity`, and whether the model
can carry it out of the simulation. Imports no torch.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from snugfit.errors import RecipeError
from snugfit.planner.constraints import Constraints
from snugfit.planner.probe import Probe, Simulations
from snugfit.recipe import Recipe
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.batch_share import largest_share
from snugfit.techniques.levels import LEVELS
from snugfit.techniques.planning import UNCALLED, ByBlock, Changes, Situation
from snugfit.workload import Workload

PLAIN = "plain"
"""Name of the choice that changes nothing."""

_BLOCKWISE = [(row, row.planning.by_block) for row in TECHNIQUES if row.planning.by_block is not None]
BY_BLOCK: Mapping[str, tuple[str, ByBlock]] = {by.how: (row.fields[0], by) for row, by in _BLOCKWISE}
"""What is done to blocks one by one, `recompute` (in backward) and `offload` (to the host): the field, and how."""
EVERYWHERE: Mapping[str, Changes] = {by.how: row.planning.choices[0].changes for row, by in _BLOCKWISE}
"""The same, done to all blocks."""
SIZE = next(row.fields[0] for row in TECHNIQUES if row.may_change == "batch")
"""The field that cuts the batch, a dimension of its own in the search."""
AT_BUILD = next(row for row in TECHNIQUES if row.planning.part == "build")
"""What decides how the model is built, and nothing about a step."""
ON_HOST = frozenset(field for row in TECHNIQUES if row.planning.on_host for field in row.fields)
"""Fields that move things to the host."""


def choices_of(*parts: str) -> list[Changes]:
    """Returns what techniques declare of some parts of a recipe, allowed or not."""
    return [one.changes for row in TECHNIQUES if row.planning.part in parts for one in row.planning.choices]


def worded(changes: Changes) -> str:
    """Returns what the search calls some changes."""
    return ", ".join(f"{name}={value}" for name, value in changes.items()) or PLAIN


SWITCHES: Mapping[str, Changes] = {
    row.name: row.planning.choices[0].changes for row in TECHNIQUES if row.planning.part == "switch"
}
"""Switches that are adopted where the simulation shows less memory and no more time."""
POINTS: Mapping[str, Changes] = {worded(change): change for change in ({}, *choices_of("blocks"))}
"""What can be done to all blocks alike; choices of some blocks lie between them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Space:
    """All recipes that may be chosen, and what simulations of them have shown."""

    simulations: Simulations
    """Where recipes are simulated."""
    constraints: Constraints
    """What they must keep to."""
    workload: Workload
    """What is learned, with the traits of the model."""
    base: Recipe
    """Plain training with the pins, and with the switches that were taken."""
    weight_bytes: int = 0
    """Bytes of the model's weights as it is built."""
    switchable: tuple[str, ...] | None = None
    """Switches for which the model has something; None where nobody knows."""

    @property
    def batch(self) -> int | None:
        """Samples of an update on the GPU that has the most; None where nobody knows."""
        return largest_share(self.base, self.workload)

    @property
    def on_cpu(self) -> bool:
        """Whether training runs on a CPU, where host and device are the same memory."""
        return self.simulations.place.on_cpu

    def under(self, constraints: Constraints) -> Space:
        """Returns the space of the same training under other constraints."""
        return dataclasses.replace(self, constraints=constraints)

    def recipe(self, *changes: Changes) -> Recipe | str:
        """Returns the recipe with changes (later ones win), or the sentence that says why it is not allowed."""
        given = self.base.to_mapping()
        for change in changes:
            given.update(change)
        if self.simulations.subject.built and any(given[name] != getattr(self.base, name) for name in AT_BUILD.fields):
            return "the model is built already; to choose where, give its name, or a function that builds it."
        if self.on_cpu and self._moves_to_host(given):
            return "on a cpu the host is the same memory, so moving things there saves nothing."
        if not self.calls_blocks and self._acts_when_called(given):
            return f"{UNCALLED}."
        try:
            made = Recipe.from_mapping(given)
            for row in TECHNIQUES:
                if row.planning.follows is not None and self.constraints.is_free(row.name):
                    made = made.replace(**row.planning.follows(made, self.workload))
        except RecipeError as error:
            return error.problems[0]
        return self.constraints.refusal(made, self.workload) or made

    @property
    def calls_blocks(self) -> bool:
        """Whether the model calls its blocks, as far as simulations that checkpoint all of them have shown."""
        everywhere = EVERYWHERE["recompute"].items()
        return not any(
            probe.recorded.uncalled_blocks and everywhere <= recipe.to_mapping().items()
            for recipe, probe in self.simulations.probes.items()
        )

    def _acts_when_called(self, given: Changes) -> bool:
        free = [(field, by) for field, by in BY_BLOCK.values() if field not in self.constraints.pins]
        return any(by.when_called(given[field]) for field, by in free)

    def _moves_to_host(self, given: Changes) -> bool:
        return any(given[name] not in ("none", False) and name not in self.constraints.pins for name in ON_HOST)

    def allowed(self, *changes: Changes) -> list[Recipe]:
        """Returns a list of the recipe with some changes; empty where that is not allowed."""
        made = self.recipe(*changes)
        return [] if isinstance(made, str) else [made]

    def simulate(self, *alternatives: Sequence[Changes], ahead: Iterable[Sequence[Changes]] = ()) -> None:
        """Simulates the recipe with each of several sets of changes, where allowed; `ahead` is as for `Simulations`."""

        def allowed(each: Iterable[Sequence[Changes]]) -> Iterator[Recipe]:
            return (recipe for changes in each for recipe in self.allowed(*changes))

        self.simulations.simulate(allowed(alternatives), allowed(ahead))

    def seen(self, *changes: Changes) -> Probe | None:
        """Returns the probe of the recipe with some changes; None where it was not simulated."""
        return next((self.simulations.probes.get(recipe) for recipe in self.allowed(*changes)), None)

    def tried(self, *changes: Changes, ahead: Iterable[Sequence[Changes]] = ()) -> Probe | None:
        """Simulates the recipe with some changes; None where that is not allowed or not possible."""
        self.simulate(changes, ahead=ahead)
        return self.seen(*changes)

    def usable(self) -> list[Probe]:
        """Returns all simulated recipes that are allowed and within the host's memory."""
        return [
            probe
            for probe in self.simulations.probes.values()
            if not self.exceeds_host(probe) and self.constraints.refusal(probe.recipe, self.workload) is None
        ]

    def exceeds_host(self, probe: Probe) -> bool:
        """Returns whether a simulated recipe takes more than the host's memory."""
        host = self.constraints.host_budget_bytes
        return host is not None and probe.host_bytes > host

    def joined(self, changes: Iterable[Changes], start: Changes | None = None) -> dict[str, Any]:
        """Returns all changes (most important first) that are allowed together; none undoes an earlier one.

        `start`: what is changed before; may be taken back.
        """
        together: dict[str, Any] = {}
        for change in changes:
            agrees = all(together.get(name, value) == value for name, value in change.items())
            if agrees and self.allowed(start or {}, together, change):
                together.update(change)
        return together

    def effective(self, changes: Iterable[Changes]) -> list[Changes]:
        """Returns changes without those that do nothing here, such as switches that find nothing to switch."""
        dead = set(SWITCHES) - set(self.switchable) if self.switchable is not None else set()
        if not self.may_build_elsewhere:
            dead.update(AT_BUILD.fields)
        return [change for change in changes if not dead & set(change)]

    @property
    def may_build_elsewhere(self) -> bool:
        """Whether another `init` may save memory: with several GPUs each would hold all it then shares out."""
        return self.workload.ranks == 1

    def sizes(self) -> list[int]:
        """Returns the allowed sizes of microbatch, largest first: halves and thirds of the batch."""
        pinned = self.constraints.pins.get(SIZE)
        if self.batch is None:
            return [pinned] if pinned is not None else []
        if SIZE in self.constraints.pins:
            return [pinned or self.batch]
        counts = sorted({n for power in range(self.batch.bit_length() + 1) for n in (2**power, 3 * 2**power)})
        found = {-(-self.batch // n) for n in counts if n <= self.batch} | {1}
        return [n for n in sorted(found, reverse=True) if n == self.batch or self.allowed(self.size_change(n))]

    def size_change(self, size: int) -> Changes:
        """Returns the change that sets a size of microbatch; none where nobody knows how large the batch is."""
        return {} if SIZE in self.constraints.pins else {SIZE: None if self.batch in (None, size) else size}

    def strategies(self) -> list[Space]:
        """Returns a space for each way to share out the model, the fastest first; itself where there is one."""
        bases = dict.fromkeys(recipe for change in ({}, *self._sharing) for recipe in self.allowed(change))
        return [dataclasses.replace(self, base=base) for base in bases] or [self]

    @functools.cached_property
    def _sharing(self) -> list[Changes]:
        asked = [row.planning.strategies for row in TECHNIQUES if row.planning.strategies is not None]
        return [change for strategies in asked for change in strategies(self.situation)]

    @property
    def sharing_fields(self) -> set[str]:
        """Fields in which ways to share out the model differ."""
        return {field for change in self._sharing for field in change}

    def has(self, recipe: Recipe) -> bool:
        """Returns whether a recipe shares out the model in this space's way."""
        return all(getattr(recipe, name) == getattr(self.base, name) for name in self.sharing_fields)

    def refined(self, recipe: Recipe) -> list[Recipe]:
        """Returns the changes that are tried at the end of a search that found a recipe."""
        asked = [row.planning.refined for row in TECHNIQUES if row.planning.refined is not None]
        own = recipe.to_mapping()
        return [made for each in asked for change in each(recipe, self.workload) for made in self.allowed(own, change)]

    @property
    def situation(self) -> Situation:
        """What a plan is for."""
        capable = self.simulations.place.personality.capability >= (8, 0)
        return Situation(self.workload, self.on_cpu, bf16=self.on_cpu or capable)

    def worth_trying(self, part: str) -> list[Changes]:
        """Returns the choices for a part of a recipe that are allowed and make sense here, least loss of fidelity first."""
        choices = [one for row in TECHNIQUES if row.planning.part == part for one in row.planning.choices]
        ordered = sorted(choices, key=lambda choice: LEVELS.index(choice.level))
        return [one.changes for one in ordered if one.level in self.constraints.allow and one.when(self.situation)]

    def built_elsewhere(self, probe: Probe) -> Changes:
        """Returns the change of `init` where building decides what a recipe (`probe`) needs; else no change."""
        too_much_on_host = self.exceeds_host(probe)
        change = AT_BUILD.planning.choices[0].changes
        chosen = any(getattr(probe.recipe, name) != getattr(Recipe(), name) for name in change)
        if chosen or not self.may_build_elsewhere or not (probe.build_decides or too_much_on_host):
            return {}
        other = self.tried(probe.recipe.to_mapping(), change)
        if other is None:
            return {}
        less_on_host = too_much_on_host and other.host_bytes < probe.host_bytes
        return change if less_on_host or other.need_bytes < probe.need_bytes else {}


def kinds_of(choices: Iterable[Changes]) -> list[list[Changes]]:
    """Returns choices grouped by the fields they set: only one of a group can be taken."""
    kinds: list[list[Changes]] = []
    for choice in choices:
        same = [kind for kind in kinds if any(choice.keys() & other.keys() for other in kind)]
        kinds = [kind for kind in kinds if kind not in same]
        if choice:
            kinds.append([*itertools.chain(*same), choice])
    return kinds


def products(kinds: Iterable[Iterable[Changes]]) -> dict[str, Changes]:
    """Returns every combination of one choice of each kind, by name."""
    taken = ({name: value for one in each for name, value in one.items()} for each in itertools.product(*kinds))
    return {worded(changes): changes for changes in taken}
