"""The search: simulate a few recipes, compose the rest, simulate the most promising, and learn from what they show.

Composed numbers (`compose.py`) are guesses. A candidate that looks faster than the best one known is simulated; how far
off the guess was corrects the guesses for its kind, and so on until no candidate promises more. The answer is always
taken from simulated recipes, all of them: one that was simulated for another budget counts as well.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator, Mapping

from snugfit.planner.compose import Composition, Sims
from snugfit.planner.probe import Laboratory, Probe
from snugfit.planner.space import PLAIN, POINTS, SWITCHES, Space
from snugfit.recipe import Recipe
from snugfit.techniques.declaration import Changes

MOST_OPERATORS = 250_000
"""Operators that may be simulated for one budget, beside the start: about half a minute on two cores."""
MOST_PROBES = 80
"""Recipes that may be simulated for one budget, so that small models do not take long either."""
WORTH = 0.002
"""A candidate must promise this part of the time less to be simulated."""
HOPE = 0.95
"""A guess at a size of microbatch that was not simulated may be so much too slow."""
_CHOICES: Mapping[str, bool] = {"some blocks": False, "some blocks, some offloaded": True}
"""Modes that choose blocks -> whether blocks are offloaded as well."""
Group = tuple[str, int, str]
"""Variant, size of microbatch, way of updating."""


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A recipe that was not simulated yet."""

    seconds: float
    """Composed, and corrected."""
    need_bytes: float
    """Composed, and corrected."""
    recipe: Recipe
    """The recipe."""
    group: Group
    """What it was composed from."""
    mode: str
    """What is done to its blocks."""
    composed: tuple[float, float]
    """Seconds and bytes before correction."""


class Search:
    """Looks for the fastest recipe within a capacity; keeps what it learned for the next capacity."""

    def __init__(self, laboratory: Laboratory, space: Space) -> None:
        """Simulates what composition starts from.

        Args:
            laboratory: Where recipes are simulated.
            space: The recipes there are.
        """
        self.laboratory = laboratory
        self.space = space
        self._seconds_factor: dict[tuple[Group, str], float] = {}
        self._bytes_factor: dict[tuple[Group, str], float] = {}
        self._start()
        self.renew()

    def renew(self) -> None:
        """Allows as much simulation again as one budget may take."""
        self._most_operators = self.laboratory.operators + MOST_OPERATORS
        self._most_probes = len(self.laboratory.probes) + MOST_PROBES

    # What composition starts from ----------------------------------------------------------------------------------

    def _start(self) -> None:
        space, lab = self.space, self.laboratory
        base = lab.need(space.base)
        taken: dict[str, object] = dict(self._built_elsewhere(base))
        there = {name: change for name, change in SWITCHES.items() if name in base.recorded.switchable}
        wanted = [(name, recipe) for name, change in there.items() for recipe in space.allowed(change)]
        lab.look(recipe for _, recipe in wanted)
        for name, recipe in wanted:
            seen = lab.probes.get(recipe)
            # Only what shows less of one and no more of the other is taken for good.
            if seen is not None and _dominates(seen, base):
                taken.update(SWITCHES[name])
        if taken:
            made = space.recipe(taken)
            assert isinstance(made, Recipe)
            self.space = space = dataclasses.replace(space, base=made)
            lab.need(made)
        self.variants = space.variants()
        self.updates = {name: change for name, change in space.updates().items() if space.allowed(change)}
        self.sizes = space.sizes() or [space.batch or 1]
        lab.look(recipe for change in self.variants.values() for recipe in space.allowed(change))
        for name, change in self.variants.items():
            for recipe in space.allowed(change):
                if recipe in lab.probes:
                    self.variants[name] = {**change, **self._built_elsewhere(lab.probes[recipe])}
        self.variants = self._promising()
        self._simulate_starts()
        composed = {name: self._composition(change) for name, change in self.variants.items()}
        self.compositions = {name: one for name, one in composed.items() if one is not None}

    def _built_elsewhere(self, probe: Probe) -> Changes:
        """Where the model is to be built instead, if building decides what a recipe needs; no change otherwise."""
        host = self.space.constraints.host_budget_bytes
        too_much_on_host = host is not None and probe.host_bytes > host
        if probe.recipe.init != "host" or not (probe.build_decides or too_much_on_host):
            return {}
        change: Changes = {"init": "device"}
        for recipe in self.space.allowed(probe.recipe.to_mapping(), change):
            self.laboratory.look([recipe])
            other = self.laboratory.probes.get(recipe)
            less_on_host = too_much_on_host and other is not None and other.host_bytes < probe.host_bytes
            if other is not None and (less_on_host or other.need_bytes < probe.need_bytes):
                return change
        return {}

    def _promising(self) -> dict[str, Changes]:
        """Variants that can be carried out and that no other beats in both memory and time."""
        seen: dict[str, Probe] = {}
        for name, change in self.variants.items():
            for recipe in self.space.allowed(change):
                found = self.laboratory.probes.get(recipe)
                if found is not None:
                    seen[name] = found
        kept = {
            name: self.variants[name]
            for name, one in seen.items()
            if not any(_dominates(other, one) for key, other in seen.items() if key != name)
        }
        return kept or {name: self.variants[name] for name in list(seen)[:1]}

    def _simulate_starts(self) -> None:
        space = self.space
        wanted: list[Recipe] = []
        large = self._size_change(self.sizes[0])
        for variant in self.variants.values():
            for point in POINTS.values():
                wanted += space.allowed(variant, large, point)
            if self.small_size is not None:
                wanted += space.allowed(variant, self._size_change(self.small_size))
            for update in self.updates.values():
                wanted += space.allowed(variant, large, update)
        if space.on_cpu:  # a processor's cache may make a smaller microbatch the faster one
            wanted += [recipe for size in self.sizes for recipe in space.allowed(self._size_change(size))]
        self.laboratory.look(wanted)

    @property
    def small_size(self) -> int | None:
        """The small microbatch that is simulated beside the largest."""
        smaller = self.sizes[1:]
        if not smaller:
            return None
        wanted = max(self.sizes[0] // 8, 1)
        return min(smaller, key=lambda size: (abs(size - wanted), size))

    def _size_change(self, size: int) -> Changes:
        return self.space.size_change(size)

    def _found(self, *changes: Changes) -> Probe | None:
        for recipe in self.space.allowed(*changes):
            return self.laboratory.probes.get(recipe)
        return None

    def _composition(self, variant: Changes) -> Composition | None:
        large = self._size_change(self.sizes[0])
        probe = self._found(variant, large)
        if probe is None:
            return None
        updates = {name: self._found(variant, large, change) for name, change in self.updates.items()}
        small = self.small_size
        return Composition(
            Sims(
                batch=self.space.batch or self.sizes[0],
                large=probe,
                plain=_Plain(self, variant),
                small_size=None if small is None or self._found(variant, self._size_change(small)) is None else small,
                serial=self.space.on_cpu,
                checkpointed=self._found(variant, large, POINTS["checkpoint"]),
                offloaded=self._found(variant, large, POINTS["offload"]),
                updates={name: found for name, found in updates.items() if found is not None},
            )
        )

    # The search ----------------------------------------------------------------------------------------------------

    def best(self, capacity_bytes: int) -> Probe | None:
        """Returns the fastest simulated recipe that fits.

        Args:
            capacity_bytes: Memory there is, CUDA's context apart.
        """
        fitting = [probe for probe in self.usable() if probe.need_bytes <= capacity_bytes]
        return min(fitting, key=lambda probe: (probe.seconds, probe.need_bytes), default=None)

    def usable(self) -> list[Probe]:
        """Returns all simulated recipes that are allowed and stay within the host's memory."""
        return [probe for probe in self.laboratory.probes.values() if self._allowed(probe)]

    def _allowed(self, probe: Probe) -> bool:
        host = self.space.constraints.host_budget_bytes
        if host is not None and probe.host_bytes > host:
            return False
        return self.space.constraints.refusal(probe.recipe, self.space.workload) is None

    def run(self, capacity_bytes: int, *, most_rounds: int = 24, at_once: int = 2) -> Probe | None:
        """Looks for the fastest recipe.

        Args:
            capacity_bytes: Memory there is, CUDA's context apart.
            most_rounds: Rounds of simulation.
            at_once: Candidates that a round tries.

        Returns:
            The best one that was simulated, or None where nothing fits.
        """
        for _ in range(most_rounds):
            if self.laboratory.operators > self._most_operators or len(self.laboratory.probes) > self._most_probes:
                break
            best = self.best(capacity_bytes)
            limit = best.seconds * (1 - WORTH) if best is not None else float("inf")
            chosen = self._most_promising(capacity_bytes, limit, at_once)
            if not chosen:
                break
            self.laboratory.look(candidate.recipe for candidate in chosen)
            for candidate in chosen:
                self._learn(candidate)
        best = self.best(capacity_bytes)
        for probe in sorted(self.laboratory.probes.values(), key=lambda probe: probe.seconds):
            if (best is not None and probe.seconds >= best.seconds) or len(self.laboratory.probes) > self._most_probes:
                break
            if self.space.constraints.refusal(probe.recipe, self.space.workload) is None:
                self._built_elsewhere(probe)
        return self.best(capacity_bytes)

    def _most_promising(self, capacity_bytes: int, limit: float, count: int) -> list[Candidate]:
        """The candidates of the least time, of different groups, under a limit of time."""
        found: list[Candidate] = []
        groups = sorted((self._bound(group), group) for group in self._groups())
        for bound, group in groups:
            worst = limit if len(found) < count else min(limit, max(candidate.seconds for candidate in found))
            if bound >= worst:
                break
            mine = [candidate for candidate in self._candidates(group, capacity_bytes) if candidate.seconds < limit]
            found += heapq.nsmallest(1, mine, key=lambda candidate: candidate.seconds)
            found = heapq.nsmallest(count, found, key=lambda candidate: candidate.seconds)
        return found

    def _groups(self) -> Iterator[Group]:
        for variant, composition in self.compositions.items():
            for size in self.sizes:
                for update in composition.sims.updates:
                    if self.space.allowed(self.variants[variant], self._size_change(size), self.updates[update]):
                        yield variant, size, update

    def _bound(self, group: Group) -> float:
        variant, size, update = group
        factors = [self._seconds_off(group, mode) for mode in (*POINTS, *_CHOICES)]
        return self.compositions[variant].plain_seconds(size, update) * min(factors)

    def _seconds_off(self, group: Group, mode: str) -> float:
        """How far off a guess at the time is: as seen, or as seen of recipes like it, or the benefit of the doubt."""
        if (group, mode) in self._seconds_factor:
            return self._seconds_factor[group, mode]
        if group[1] in self.compositions[group[0]].sims.plain:
            return 1.0
        near = _of_relatives(self._seconds_factor, group, mode)
        return HOPE if near is None else near * (1 - WORTH)

    def _bytes_off(self, group: Group, mode: str) -> float:
        """How far off a guess at the memory is."""
        if (group, mode) in self._bytes_factor:
            return self._bytes_factor[group, mode]
        return _of_relatives(self._bytes_factor, group, mode) or 1.0

    def _candidates(self, group: Group, capacity_bytes: int) -> Iterator[Candidate]:
        """Recipes of a group that should fit and were not simulated."""
        variant, size, update = group
        composition = self.compositions[variant]
        common = (self.variants[variant], self._size_change(size), self.updates[update])
        large = self._size_change(self.sizes[0])
        for mode, change in POINTS.items():
            seen = self._found(self.variants[variant], large, change)
            if seen is None:
                continue
            seconds = composition.point_seconds(seen, size, update)
            need = composition.point_bytes(seen, size, update)
            yield from self._candidate(group, mode, (seconds, need), (*common, change), capacity_bytes)
        names = composition.sims.large.recorded.block_names
        for mode, offload in _CHOICES.items():
            room = capacity_bytes / self._bytes_off(group, mode)
            chosen = composition.chosen(size, update, room, offload=offload)
            if chosen is None or not (chosen.checkpointed or chosen.offloaded):
                continue
            change = {
                "checkpoint": block_choice(chosen.checkpointed, names),
                "offload_activations": tuple(names[i] for i in chosen.offloaded) or "none",
            }
            yield from self._candidate(
                group, mode, (chosen.seconds, chosen.need_bytes), (*common, change), capacity_bytes
            )

    def _candidate(
        self, group: Group, mode: str, composed: tuple[float, float], changes: tuple[Changes, ...], capacity_bytes: int
    ) -> Iterator[Candidate]:
        seconds, need = composed
        seconds *= self._seconds_off(group, mode)
        need *= self._bytes_off(group, mode)
        if need > capacity_bytes * (1 + 1e-9):
            return
        for recipe in self.space.allowed(*changes):
            if recipe not in self.laboratory.probes and recipe not in self.laboratory.refusals:
                yield Candidate(seconds, need, recipe, group, mode, composed)

    def _learn(self, candidate: Candidate) -> None:
        seen = self.laboratory.probes.get(candidate.recipe)
        if seen is None:
            return
        seconds, need = candidate.composed
        self._seconds_factor[candidate.group, candidate.mode] = seen.seconds / max(seconds, 1e-12)
        factor = seen.need_bytes / max(need, 1.0)
        known = self._bytes_factor.get((candidate.group, candidate.mode))
        if known is not None and abs(factor - known) < 0.002 and seen.need_bytes > candidate.need_bytes:
            factor *= 1.004  # the same guess again would only just fail again
        self._bytes_factor[candidate.group, candidate.mode] = factor


class _Plain(Mapping[int, Probe]):
    """Simulations in which nothing is checkpointed, by size of microbatch, as many as there are by now."""

    def __init__(self, search: Search, variant: Changes) -> None:
        self._probes = search.laboratory.probes
        self._recipes = {
            size: recipe for size in search.sizes for recipe in search.space.allowed(variant, search._size_change(size))
        }

    def __getitem__(self, size: int) -> Probe:
        return self._probes[self._recipes[size]]

    def __iter__(self) -> Iterator[int]:
        return (size for size, recipe in self._recipes.items() if recipe in self._probes)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def block_choice(chosen: tuple[int, ...], names: tuple[str, ...]) -> str | tuple[str, ...]:
    """Returns the shortest way to say which blocks are meant.

    Args:
        chosen: Indices of blocks.
        names: Names of all blocks.

    Returns:
        `none`, `all`, `blocks:K`, or the names.
    """
    if not chosen:
        return "none"
    if len(chosen) == len(names):
        return "all"
    if chosen == tuple(range(len(chosen))):
        return f"blocks:{len(chosen)}"
    return tuple(names[i] for i in chosen)


def _of_relatives(factors: Mapping[tuple[Group, str], float], group: Group, mode: str) -> float | None:
    """A factor between those of the nearest sizes of microbatch that were seen of a variant and mode, by any update."""
    variant, size, _ = group
    seen = {one[1]: factor for (one, other), factor in factors.items() if (one[0], other) == (variant, mode)}
    if not seen:
        return None
    below = max((other for other in seen if other <= size), default=min(seen))
    above = min((other for other in seen if other >= size), default=max(seen))
    part = (size - below) / (above - below) if above > below else 0.0
    return seen[below] + (seen[above] - seen[below]) * min(max(part, 0.0), 1.0)


def _dominates(one: Probe, other: Probe) -> bool:
    """Whether one needs less memory or time by more than noise, and no more of either."""
    no_more = one.need_bytes <= other.need_bytes and one.seconds <= other.seconds * (1 + 1e-9)
    return no_more and (one.need_bytes < 0.999 * other.need_bytes or one.seconds < 0.999 * other.seconds)


__all__ = ["PLAIN", "Candidate", "Search", "block_choice"]
