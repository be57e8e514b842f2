"""The search: simulate a few recipes, compose the rest, simulate the most promising, and learn from what they show.

Composed numbers (`compose.py`) are guesses. A candidate that looks faster than the best one known is simulated; how far
off the guess was corrects the guesses for its kind, and so on until no candidate promises more. The answer is always
taken from simulated recipes, all of them: one that was simulated for another budget counts as well.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator, Mapping

from snugfit.planner.compose import Composition
from snugfit.planner.probe import Probe
from snugfit.planner.space import AT_BUILD, BY_BLOCK, PLAIN, POINTS, SWITCHES, Space
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

    def __init__(self, space: Space) -> None:
        """Simulates what composition starts from.

        Args:
            space: The recipes there are.
        """
        self.laboratory, self.space = space.laboratory, space
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
        there = [change for name, change in SWITCHES.items() if name in base.recorded.switchable]
        space.look(*((change,) for change in there))
        for change in there:
            seen = space.seen(change)
            # Only what shows less of one and no more of the other is taken for good.
            if seen is not None and _dominates(seen, base):
                taken.update(change)
        if taken:
            made = space.recipe(taken)
            assert isinstance(made, Recipe)
            self.space = space = dataclasses.replace(space, base=made)
            lab.need(made)
        self.updates = {name: change for name, change in space.updates().items() if space.allowed(change)}
        self.sizes = space.sizes() or [space.batch or 1]
        self.variants = self._promising(space.variants())
        self._simulate_starts()
        composed = {name: self._composition(change) for name, change in self.variants.items()}
        self.compositions = {name: one for name, one in composed.items() if one is not None}

    def _built_elsewhere(self, probe: Probe) -> Changes:
        """Where the model is to be built instead, if building decides what a recipe needs; no change otherwise."""
        too_much_on_host = self.space.exceeds_host(probe)
        change = AT_BUILD.least
        chosen = any(getattr(probe.recipe, name) != getattr(Recipe(), name) for name in change)
        if chosen or not self.space.may_build_elsewhere or not (probe.build_decides or too_much_on_host):
            return {}
        other = self.space.tried(probe.recipe.to_mapping(), change)
        if other is None:
            return {}
        less_on_host = too_much_on_host and other.host_bytes < probe.host_bytes
        return change if less_on_host or other.need_bytes < probe.need_bytes else {}

    def _promising(self, variants: Mapping[str, Changes]) -> dict[str, Changes]:
        """Variants that can be carried out and that no other beats in both memory and time."""
        self.space.look(*((change,) for change in variants.values()))
        seen: dict[str, tuple[Changes, Probe]] = {}
        for name, change in variants.items():
            found = self.space.seen(change)
            if found is not None:
                built = {**change, **self._built_elsewhere(found)}
                seen[name] = built, self.space.seen(built) or found
        kept = {
            name: change
            for name, (change, one) in seen.items()
            if not any(_dominates(other, one) for _, other in seen.values() if other is not one)
        }
        kept = kept or {name: change for name, (change, _) in list(seen.items())[:1]}
        return {name: change for name, change in kept.items() if not self._hardly_worth(change)}

    def _hardly_worth(self, variant: Changes) -> bool:
        """Whether a variant takes longer than plain passes and saves next to nothing, nor with all blocks computed again."""
        everywhere = BY_BLOCK["again"][1].everywhere
        for point in ({}, everywhere):
            if point:
                self.space.look((point,), (variant, point))
            plain, mine = self.space.seen(point), self.space.seen(variant, point)
            if plain is None or mine is None or mine is plain or not _hardly_saves(mine, plain):
                return False
        return True

    def _simulate_starts(self) -> None:
        wanted: list[tuple[Changes, ...]] = []
        large = self.space.size_change(self.sizes[0])
        for name, variant in self.variants.items():
            wanted += [(variant, large, point) for point in POINTS.values()]
            if self.small_size is not None:
                wanted.append((variant, self.space.size_change(self.small_size)))
            if name == PLAIN or not self._updates_alike(variant):
                wanted += [(variant, large, update) for update in self.updates.values()]
        if self.space.on_cpu:  # a processor's cache may make a smaller microbatch the faster one
            wanted += [(self.space.size_change(size),) for size in self.sizes]
        self.space.look(*wanted)

    @property
    def small_size(self) -> int | None:
        """The small microbatch that is simulated beside the largest."""
        smaller = self.sizes[1:]
        if not smaller:
            return None
        wanted = max(self.sizes[0] // 8, 1)
        return min(smaller, key=lambda size: (abs(size - wanted), size))

    def _composition(self, variant: Changes) -> Composition | None:
        space = self.space
        large = self.space.size_change(self.sizes[0])
        probe = space.seen(variant, large)
        if probe is None:
            return None
        updates = {name: self._updated(probe, variant, change) for name, change in self.updates.items()}
        sized = {size: space.allowed(variant, self.space.size_change(size)) for size in self.sizes}
        return Composition(
            batch=space.batch or self.sizes[0],
            largest=self.sizes[0],
            large=probe,
            recipes={size: recipe for size, allowed in sized.items() for recipe in allowed},
            probes=self.laboratory.probes,
            small_size=self.small_size,
            serial=space.on_cpu,
            again=space.seen(variant, large, BY_BLOCK["again"][1].everywhere),
            away=space.seen(variant, large, BY_BLOCK["away"][1].everywhere),
            updates={name: found for name, found in updates.items() if found is not None},
        )

    def _updates_alike(self, variant: Changes) -> bool:
        """Whether a variant is updated as plain passes are: it has weights, gradients and state of the same bytes."""
        large = self.space.size_change(self.sizes[0])
        plain, mine = self.space.seen(large), self.space.seen(variant, large)
        return plain is not None and mine is not None and plain.profile.held_bytes == mine.profile.held_bytes

    def _updated(self, probe: Probe, variant: Changes, update: Changes) -> Probe | None:
        """A variant updated in a way: as simulated, or with what that way changes for plain passes."""
        large = self.space.size_change(self.sizes[0])
        seen = self.space.seen(variant, large, update)
        base, other = self.space.seen(large), self.space.seen(large, update)
        if seen is not None or base is None or other is None or not self._updates_alike(variant):
            return seen
        seconds = probe.seconds + other.seconds - base.seconds
        return dataclasses.replace(probe, seconds=seconds, profile=probe.profile.shifted(base.profile, other.profile))

    # The search ----------------------------------------------------------------------------------------------------

    def best(self, capacity_bytes: int) -> Probe | None:
        """Returns the fastest simulated recipe that fits.

        Args:
            capacity_bytes: Memory there is, CUDA's context apart.
        """
        fitting = [probe for probe in self.space.usable() if probe.need_bytes <= capacity_bytes]
        return min(fitting, key=lambda probe: (probe.seconds, probe.need_bytes), default=None)

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
                for update in composition.updates:
                    if self.space.allowed(self.variants[variant], self.space.size_change(size), self.updates[update]):
                        yield variant, size, update

    def _bound(self, group: Group) -> float:
        variant, size, update = group
        factors = [self._seconds_off(group, mode) for mode in (*POINTS, *_CHOICES)]
        return self.compositions[variant].plain_seconds(size, update) * min(factors)

    def _seconds_off(self, group: Group, mode: str) -> float:
        """How far off a guess at the time is: as seen, or as seen of recipes like it, or the benefit of the doubt."""
        if (group, mode) in self._seconds_factor:
            return self._seconds_factor[group, mode]
        if self.compositions[group[0]].plain(group[1]) is not None:
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
        common = (self.variants[variant], self.space.size_change(size), self.updates[update])
        large = self.space.size_change(self.sizes[0])
        for mode, change in POINTS.items():
            seen = self.space.seen(self.variants[variant], large, change)
            if seen is None:
                continue
            seconds = composition.point_seconds(seen, size, update)
            need = composition.point_bytes(seen, size, update)
            yield from self._candidate(group, mode, (seconds, need), (*common, change), capacity_bytes)
        names = composition.large.recorded.block_names
        for mode, offload in _CHOICES.items():
            room = capacity_bytes / self._bytes_off(group, mode)
            chosen = composition.chosen(size, update, room, offload=offload)
            if chosen is None or not any(chosen.blocks.values()):
                continue
            change = {field: by.value(chosen.blocks[how], names) for how, (field, by) in BY_BLOCK.items()}
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


def _hardly_saves(one: Probe, other: Probe) -> bool:
    """Whether one takes longer than another, by more than noise, for memory that is hardly less."""
    return one.seconds > 1.01 * other.seconds and one.need_bytes > 0.99 * other.need_bytes


def _dominates(one: Probe, other: Probe) -> bool:
    """Whether one needs less memory or time by more than noise, and no more of either."""
    no_more = one.need_bytes <= other.need_bytes and one.seconds <= other.seconds * (1 + 1e-9)
    return no_more and (one.need_bytes < 0.999 * other.need_bytes or one.seconds < 0.999 * other.seconds)
