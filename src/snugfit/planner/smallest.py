"""The least memory that training can do with: for a budget in which nothing fits, and to see how far there is to go.

Two recipes start: everything that saves memory at once with microbatches of one sample, and the same with the step in
backward, which rules microbatches out. From the better one each technique is tried the other way round, and what helps is
kept. Speed does not count here. Every number is from a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from snugfit.planner.closeness import with_room
from snugfit.planner.probe import AT_ONCE, Probe
from snugfit.planner.sharing import fits_in, least_weights_of
from snugfit.planner.space import EVERYWHERE, ON_HOST, SIZE, Space
from snugfit.recipe import Recipe
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.levels import LEVELS, Level
from snugfit.techniques.planning import Changes

MOST_COMPILED = 4
"""Recipes that a plan compiles at most, each of which takes minutes."""
_NEAR = 1.25
"""Times the capacity that a recipe may need for something leaner to be found by the search itself."""
_FAR = 2.0
"""Times the capacity that the leanest recipe of all may need before nothing more is tried: what single changes still save
over what saves everything at once is a small part of it."""
_ROUNDS: Mapping[Level, int] = {"exact": 2, "rounding": 1, "different": 1}
"""Level -> how often everything is tried, while it helps."""
_STARTS: Mapping[Level, tuple[bool, ...]] = {"exact": (True, False), "rounding": (False,), "different": (True,)}
"""Level -> where the search begins: with the leanest choices up to that level, each time with microbatches of one sample
(True) or with what they rule out, the update in the middle of backward (False)."""


def _lean(level: Level) -> list[Changes]:
    """What is tried at a level of fidelity; microbatches once more where they may be `different`."""
    declared = [one.changes for row in TECHNIQUES for one in row.planning.lean if one.level == level]
    return declared if level == "rounding" else [{SIZE: 1}, *declared]


class Smallest:
    """Looks for the recipe that needs the least memory."""

    def __init__(self, space: Space) -> None:
        """Starts with what was simulated."""
        self.space = space
        self._simulations = space.simulations
        self._started: set[Level] = set()
        self._searched: set[Level] = set()

    def start(self, level: Level, enough_bytes: int = 0, lowest: Level = LEVELS[0]) -> Probe | None:
        """Returns the best of the recipes that save everything at once, and of what else was simulated.

        `enough_bytes`: where one needs no more than this, those that give up less fidelity are not simulated.
        `lowest`: nor are those of levels below this one, now or later.
        """
        space = self.space.under(self.space.constraints.up_to(level))
        self._started.update(LEVELS[: LEVELS.index(lowest)])
        new = [name for name in LEVELS if name in space.constraints.allow and name not in self._started]
        for names in [[name] for name in reversed(new)] if enough_bytes else [new]:
            best = _leanest(space)
            if enough_bytes and best is not None and best.need_bytes <= enough_bytes:
                return best
            self._started.update(names)
            self._start(
                space, [self.space.effective(self._leanest(name, cut=cut)) for name in names for cut in _STARTS[name]]
            )
        return _leanest(space)

    def _start(self, space: Space, starts: list[list[Changes]]) -> None:
        wanted = [_joined(space, changes) for changes in starts]
        # Where they fit, a search begins with what changes the passes.
        passes = (recipe for change in space.worth_trying("passes") for recipe in space.allowed(change))
        self._simulations.simulate(wanted, ahead=passes)
        for changes, recipe in zip(starts, wanted, strict=True):
            refusal = self._simulations.refusals.get(recipe)
            possible = [change for change in changes if refusal is None or not set(change) & set(refusal.fields)]
            if len(possible) < len(changes):  # such as no head and loss that could be computed in chunks
                self._simulations.simulate([_joined(space, possible)])
        probes = [self._simulations.probes[recipe] for recipe in wanted if recipe in self._simulations.probes]
        if any(map(space.exceeds_host, probes)):  # so nothing is kept there
            here = [[change for change in changes if not set(change) & ON_HOST] for changes in starts]
            self._simulations.simulate([_joined(space, changes) for changes in here])

    def _leanest(self, level: Level, *, cut: bool) -> list[Changes]:
        """What needs the least memory of each field, up to a level; contradictions are sorted out later."""
        found: dict[str, Changes] = {SIZE: self.space.size_change(1)} if cut else {}
        for row in TECHNIQUES:
            least = row.planning.least
            if least is not None and LEVELS.index(least.level) <= LEVELS.index(level):
                found[row.fields[0]] = least.changes
        return list(found.values())

    def find(self, level: Level, enough_bytes: int = 0, most_operators: int | None = None) -> Probe | None:
        """Returns the recipe of the least memory.

        `level`: the widest level of fidelity that is allowed, beside what the constraints allow.
        `enough_bytes`: nothing more is tried once a recipe needs no more than this.
        `most_operators`: nor once so many operators were simulated, beside what the search starts from; None: no limit.
        Its simulation; None where nothing at all can be simulated within the host's memory.
        """
        space = self.space.under(self.space.constraints.up_to(level))
        best = self.start(level)
        self._most = math.inf if most_operators is None else self._simulations.operators + most_operators
        for name in LEVELS:
            if name not in space.constraints.allow or name in self._searched:
                continue
            for _ in range(_ROUNDS[name]):
                before, best = best, self._round(space, best, _lean(name), enough_bytes)
                if best is not None and best.need_bytes <= enough_bytes:
                    return best
                if best is None or (before is not None and best.need_bytes > 0.995 * before.need_bytes):
                    break
            self._searched.add(name)
        if _leanest(space) is None:  # the model goes with nothing that saves
            self._simulations.simulate([space.base])
        return _leanest(space)

    def ever_leaner(self, enough_bytes: int = 0) -> Iterator[Probe | None]:
        """Yields the plain recipe, every block checkpointed, all that saves memory, and activations on the host."""
        passes = [(change,) for change in self.space.worth_trying("passes")]
        yield self.space.tried({}, ahead=[(EVERYWHERE["recompute"],), *passes])
        yield self.space.tried(EVERYWHERE["recompute"], ahead=passes)
        yield self.start(self.space.constraints.widest, enough_bytes)
        yield self.space.tried(EVERYWHERE["offload"])  # helps alone where what is no block needs the most

    def may_fit(self, capacity_bytes: int, *, longer: bool, surely: bool = True) -> bool:
        """Returns whether something of the space may fit, on the device and on the host.

        `longer`: whether the least memory is looked for, too, where the leanest recipe of all comes near.
        `surely`: whether a recipe has to be seen that fits; otherwise it is enough that one needs hardly more.
        """
        if least_weights_of(self.space) > capacity_bytes:
            return False
        for seen in self.ever_leaner(enough_bytes=capacity_bytes):
            if seen is not None and fits_in(self.space, capacity_bytes):
                return True
            if seen is not None and not surely and seen.need_bytes <= _NEAR * capacity_bytes:
                return True
        if longer:
            self.find(self.space.constraints.widest, enough_bytes=capacity_bytes)
        return fits_in(self.space, capacity_bytes)

    def find_as_it_runs(self, level: Level, most_operators: int | None = None) -> Probe | None:
        """Returns the same as it runs: a compiled step may need more than the eager one it was judged by."""
        seen: list[Probe] = []
        while len(seen) < MOST_COMPILED:
            found = self.find(level, most_operators=most_operators)
            if found is None or found.as_it_runs:
                return found
            seen.append(self._simulations.as_it_runs(found))
        return min(seen, key=lambda probe: probe.need_bytes)

    def is_hopeless(self, capacity_bytes: int) -> bool:
        """Returns whether nothing can fit: the weights alone do not, or what saves all at once is far from it.

        Then what wider fidelity would save is simulated as well, to be named: two recipes at a time.
        """
        widest = self.space.constraints.widest
        if least_weights_of(self.space) > capacity_bytes:
            self.start(LEVELS[-1], lowest=widest)
            return True
        leanest = self.start(widest)
        return leanest is not None and leanest.need_bytes > _FAR * capacity_bytes

    def _round(self, space: Space, best: Probe | None, changes: Iterable[Changes], enough_bytes: int) -> Probe | None:
        """Tries every single change, and those that help together; stops once a recipe needs little enough."""
        base = space.base if best is None else best.recipe
        start, alone = base.to_mapping(), [with_room(space, base, change) for change in self.space.effective(changes)]
        possible = [change for change in alone if change is not None]
        for number in range(0, len(possible), AT_ONCE):
            leanest = _leanest(space)
            if leanest is not None and leanest.need_bytes <= enough_bytes:
                return leanest
            if self._simulations.operators >= self._most:
                break
            space.simulate(*((start, change) for change in possible[number : number + AT_ONCE]))
        helped: list[tuple[int, Changes]] = []
        for change in possible:
            seen = space.seen(start, change)
            if seen is not None and (best is None or seen.need_bytes < 0.998 * best.need_bytes):
                helped.append((seen.need_bytes, change))
        if not helped:
            return _leanest(space)
        ordered = [change for _, change in sorted(helped, key=lambda item: item[0])]
        space.simulate((start, space.joined(ordered, start)))
        return _leanest(space)


def smallest_of(spaces: Sequence[Space]) -> Smallest:
    """Returns the search in the way to share that needs the least by now."""
    seen = sorted(spaces[0].usable(), key=lambda probe: probe.need_bytes)
    leanest = next((space for probe in seen for space in spaces if space.has(probe.recipe)), spaces[-1])
    return Smallest(leanest)


def _leanest(space: Space) -> Probe | None:
    return min(space.usable(), key=lambda probe: (probe.need_bytes, probe.seconds), default=None)


def _joined(space: Space, changes: Iterable[Changes]) -> Recipe:
    """The recipe with every change that is allowed and contradicts no earlier one."""
    return (space.allowed(space.joined(changes)) or [space.base])[0]
