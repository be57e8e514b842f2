"""The search: simulate a few recipes, compose the rest, simulate the most promising, and learn from what they show.

Composed numbers (`compose.py`) are guesses. A candidate that looks faster than the best one known is simulated; how far
off the guess was corrects the guesses for its kind, and so on until no candidate promises more. The answer is always
taken from simulated recipes, all of them: one that was simulated for another budget counts as well.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Iterator, Mapping

from snugfit.planner.closeness import NEARLY, Farness, closest, farness
from snugfit.planner.compose import Composition
from snugfit.planner.corrections import WORTH, Corrections, Group
from snugfit.planner.probe import AT_ONCE, Probe
from snugfit.planner.space import BY_BLOCK, POINTS, SIZE, SWITCHES, Space
from snugfit.planner.variants import HOPE, Variants, dominates
from snugfit.recipe import Recipe
from snugfit.techniques.planning import Changes

MOST_OPERATORS = 2_000_000
"""Operators that may be simulated for one budget, beside the start: some minutes on two cores."""
MOST_PROBES = 80
"""Recipes that may be simulated for one budget, so that small models do not take long either."""
_BETWEEN_SIZES = 0.985
"""The same where two sizes of microbatch were simulated: of sizes between them composition rather promises too much."""
_APART = 1.02
"""Of two candidates the slower one is not simulated beside the faster where it promises so much less."""
_MOST_ROUNDS = 24
"""Times that candidates are simulated among the same variants."""
_GUESSES = 3
"""Candidates of which the fastest is looked for, once nothing is hoped of what was not simulated."""
_CHOICES: Mapping[str, bool] = {"some blocks": False, "some blocks, some offloaded": True}
"""Modes that choose blocks -> whether blocks are offloaded as well."""


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A recipe that was not simulated yet, with guesses at its time and bytes."""

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
    """Looks for the fastest recipe within a capacity, and keeps what it learned for the next capacity."""

    def __init__(self, space: Space, no_use: set[str], most_probes: int = MOST_PROBES) -> None:
        """Simulates what composition starts from.

        `no_use`: as for `Variants`, shared by several searches.
        `most_probes`: recipes that may be simulated for one budget.
        """
        self._may_simulate = most_probes
        self.simulations, self.space = space.simulations, space
        self._corrections = Corrections()
        self._take_switches()
        self.sizes = self.space.sizes() or [self.space.batch or 1]
        self.variants = Variants(self.space, self.sizes, no_use)
        self.renew()

    def _take_switches(self) -> None:
        """Adopts each switch (such as `inplace`) that saves memory or time and costs neither."""
        space = self.space
        base = space.simulations.need(space.base)
        taken: dict[str, object] = dict(space.built_elsewhere(base))
        there = [change for name, change in SWITCHES.items() if name in base.recorded.switchable]
        space.simulate(*((change,) for change in there))
        for change in there:
            seen = space.seen(change)
            if seen is not None and dominates(seen, base):
                taken.update(change)
        if taken:
            made = space.recipe(taken)
            assert isinstance(made, Recipe)
            self.space = dataclasses.replace(space, base=made)
            self.simulations.need(made)

    @property
    def compositions(self) -> Mapping[str, Composition]:
        """Name of a variant -> arithmetic on its simulations, for those that were worth it so far."""
        return self.variants.composed

    def renew(self) -> None:
        """Allows as many new simulations again as one budget may take."""
        self._most_operators = self.simulations.operators + MOST_OPERATORS
        self._most_probes = len(self.simulations.probes) + self._may_simulate

    # The search ----------------------------------------------------------------------------------------------------

    def _fitting(self, capacity_bytes: int) -> list[Probe]:
        return [probe for probe in self.space.usable() if probe.need_bytes <= capacity_bytes]

    def best(self, capacity_bytes: int) -> Probe | None:
        """Returns the fastest simulated recipe that fits, or one closer to plain training of nearly the same time."""
        return closest(self._fitting(capacity_bytes), self.space.workload)

    def run(self, capacity_bytes: int) -> Probe | None:
        """Looks for the fastest recipe among the composed variants, then among more; None where nothing fits.

        A recipe that was found in another way, such as that of the least memory, is where the search goes on from.
        """
        while not self._spent:
            self.descend(capacity_bytes)
            if not self._spent and not self.variants.widen(capacity_bytes, self._limit(capacity_bytes)):
                best = self.best(capacity_bytes)
                if best is None or not self.space.has(best.recipe) or not self.variants.begin_from(best.recipe):
                    break
        limit = self._limit(capacity_bytes)
        # Whatever is faster than the best and does not fit may fit when it is built elsewhere (`init`).
        for probe in sorted(self.simulations.probes.values(), key=lambda probe: probe.seconds):
            if probe.seconds >= limit or self._spent:
                break
            if self.space.constraints.refusal(probe.recipe, self.space.workload) is None:
                self.space.built_elsewhere(probe)
        return self.best(capacity_bytes)

    @property
    def _spent(self) -> bool:
        return self.simulations.operators > self._most_operators or len(self.simulations.probes) > self._most_probes

    def _limit(self, capacity_bytes: int) -> float:
        """The seconds that a candidate must stay under to be worth a simulation."""
        fitting = self._fitting(capacity_bytes)
        return min((probe.seconds for probe in fitting), default=float("inf")) * (1 - WORTH)

    def descend(self, capacity_bytes: int) -> None:
        """Simulates what promises to be faster than the fastest, or closer to plain in nearly the same time."""
        for _ in range(_MOST_ROUNDS):
            if self._spent:
                break
            limit = self._limit(capacity_bytes)
            chosen = self._most_promising(capacity_bytes, limit, AT_ONCE)
            best = self.best(capacity_bytes)
            if not chosen and best is not None:
                far = farness(best.recipe, self.space.workload)
                chosen = self._most_promising(capacity_bytes, limit * NEARLY, AT_ONCE, far)
            if not chosen:
                break
            chosen = [one for one in chosen if one.seconds <= _APART * chosen[0].seconds]
            ahead = (recipe for changes in self.variants.later for recipe in self.space.allowed(*changes))
            self.simulations.simulate((candidate.recipe for candidate in chosen), ahead)
            for one in chosen:
                seen = self.simulations.probes.get(one.recipe)
                if seen is not None:
                    numbers = seen.seconds, seen.need_bytes
                    self._corrections.learn(one.group, one.mode, one.composed, one.need_bytes, numbers)

    def promising(self, capacity_bytes: int, among: Callable[[Recipe], bool] | None = None) -> Candidate | None:
        """Returns the fastest recipe that should fit, that was not simulated, and that promises more than what was.

        Choices that mix checkpointing and offload are left out: each takes a tenth of a second to solve.

        `among`: which recipes count, however long they take; None: all that promise more than what was simulated.
        """
        limit = self._limit(capacity_bytes) if among is None else float("inf")
        guesses = []
        # Found in hope, which is left out now.
        for one in self._most_promising(capacity_bytes, limit, _GUESSES, solved=False, among=among):
            seconds, need = self._corrections.soberly(one.group, one.mode, one.composed)
            guesses.append(dataclasses.replace(one, seconds=seconds, need_bytes=need))
        fastest = min(guesses, key=lambda one: one.seconds, default=None)
        return fastest if fastest is not None and fastest.seconds < limit else None

    def _most_promising(
        self,
        capacity_bytes: int,
        limit: float,
        count: int,
        closer: Farness | None = None,
        *,
        solved: bool = True,
        among: Callable[[Recipe], bool] | None = None,
    ) -> list[Candidate]:
        """The fastest candidates under a limit, one of each group; with `closer` only those closer to plain than that.

        `solved`: whether choices count that mix checkpointing and offload.
        `among`: which recipes count; None: all.
        """
        found: list[Candidate] = []
        # Branch and bound: a group whose best imaginable time is over what was found is never composed.
        groups = sorted((self._bound(group), group) for group in self._groups())
        for bound, group in groups:
            worst = limit if len(found) < count else min(limit, max(candidate.seconds for candidate in found))
            if bound >= worst:
                break
            mine = [one for one in self._candidates(group, capacity_bytes, solved=solved) if one.seconds < limit]
            if among is not None:
                mine = [one for one in mine if among(one.recipe)]
            if closer is not None:  # fewer fields for the same fidelity are tried one by one at the end
                mine = [one for one in mine if farness(one.recipe, self.space.workload)[:-1] < closer[:-1]]
            found += heapq.nsmallest(1, mine, key=lambda candidate: candidate.seconds)
            found = heapq.nsmallest(count, found, key=lambda candidate: candidate.seconds)
        return found

    def _groups(self) -> Iterator[Group]:
        for variant, composition in self.compositions.items():
            for size in self.sizes:
                for update in composition.updates:
                    if self.space.allowed(*self._changes((variant, size, update))):
                        yield variant, size, update

    def _changes(self, group: Group) -> tuple[Changes, ...]:
        variant, size, update = group
        return self.variants.changes[variant], self.space.size_change(size), self.variants.updates[update]

    def _bound(self, group: Group) -> float:
        variant, size, update = group
        factors = [self._seconds_off(group, mode) for mode in (*POINTS, *_CHOICES)]
        return self.compositions[variant].plain_seconds(size, update) * min(factors)

    def _seconds_off(self, group: Group, mode: str) -> float:
        unknown = HOPE if self.variants.small_size is None else _BETWEEN_SIZES
        simulated = self.compositions[group[0]].plain(group[1]) is not None
        return self._corrections.seconds_off(group, mode, unknown, simulated=simulated)

    def _candidates(self, group: Group, capacity_bytes: int, *, solved: bool = True) -> Iterator[Candidate]:
        """Recipes of a group that should fit and were not simulated."""
        variant, size, update = group
        composition = self.compositions[variant]
        common = self._changes(group)
        large = self.space.size_change(self.sizes[0])
        for mode, change in POINTS.items():
            seen = self.space.seen(common[0], large, change)
            if seen is None:
                continue
            seconds = composition.point_seconds(seen, size, update)
            need = composition.point_bytes(seen, size, update)
            yield from self._candidate(group, mode, (seconds, need), (*common, change), capacity_bytes)
        names = composition.large.recorded.block_names
        for mode, offloads in _CHOICES.items():
            if offloads and not solved:
                continue
            room = capacity_bytes / self._corrections.bytes_off(group, mode)
            chosen = composition.chosen(size, update, room, offloads=offloads)
            if chosen is None or not any(chosen.blocks.values()):
                continue
            change = {field: by.value(chosen.blocks[how], names) for how, (field, by) in BY_BLOCK.items()}
            yield from self._candidate(
                group, mode, (chosen.seconds, chosen.need_bytes), (*common, change), capacity_bytes
            )

    def composed(self, recipe: Recipe) -> tuple[float, float] | None:
        """Returns seconds and bytes of a recipe as composition has them, uncorrected; None where it has no word for it."""
        size = getattr(recipe, SIZE) or self.sizes[0]
        blocks = {field: getattr(recipe, field) for field, _ in BY_BLOCK.values()}
        for variant, composition in self.compositions.items():
            for update in composition.updates:
                group = variant, size, update
                if self.space.allowed(*self._changes(group), blocks) == [recipe]:
                    return self._composed(group, blocks)
        return None

    def _composed(self, group: Group, blocks: Changes) -> tuple[float, float] | None:
        variant, size, update = group
        composition = self.compositions[variant]
        plain = {field: getattr(self.space.base, field) for field in blocks}
        if any({**plain, **point} == blocks for point in POINTS.values()):
            seen = self.space.seen(self.variants.changes[variant], self.space.size_change(self.sizes[0]), blocks)
            if seen is None:
                return None
            return composition.point_seconds(seen, size, update), composition.point_bytes(seen, size, update)
        names = composition.large.recorded.block_names
        done = {how: by.chosen(blocks[field], names) for how, (field, by) in BY_BLOCK.items()}
        return None if None in done.values() else composition.of_blocks(size, update, done)

    def _candidate(
        self, group: Group, mode: str, composed: tuple[float, float], changes: tuple[Changes, ...], capacity_bytes: int
    ) -> Iterator[Candidate]:
        seconds, need = composed
        seconds *= self._seconds_off(group, mode)
        need *= self._corrections.bytes_off(group, mode)
        if need > capacity_bytes * (1 + 1e-9):
            return
        for recipe in self.space.allowed(*changes):
            if recipe not in self.simulations.probes and recipe not in self.simulations.refusals:
                yield Candidate(seconds, need, recipe, group, mode, composed)
