"""The least memory that training can do with: for a budget in which nothing fits, and to see how far there is to go.

Two recipes start: everything that saves memory at once with microbatches of one sample, and the same with the step in
backward, which rules microbatches out. From the better one each technique is tried the other way round, and what helps is
kept. Speed does not count here. Every number is from a simulation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from snugfit.planner.probe import WORKERS, Probe
from snugfit.planner.space import ON_HOST, Space
from snugfit.recipe import Recipe
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.declaration import LEVELS, Changes, Level, Start

_ROUNDS = 2
_STARTS: Mapping[Level, tuple[Start, ...]] = {
    "exact": ("microbatches", "in backward"),
    "rounding": ("few bits",),
    "different": ("adapters",),
}
"""Level -> the changes that the search begins with; those not allowed, or against an earlier one, are left out."""


def _least(start: Start) -> list[Changes]:
    return [row.least for row in TECHNIQUES if row.least and start in row.starts]


def _moves(level: Level) -> list[Changes]:
    return [change for row in TECHNIQUES for one, change in row.all_moves if one == level]


class Smallest:
    """Looks for the recipe that needs the least memory."""

    def __init__(self, space: Space) -> None:
        """Starts with what was simulated."""
        self.space = space
        self._laboratory = space.laboratory
        self._settled = False
        self._widened: set[Level] = set()
        self._started: set[Level] = set()

    def start(self, level: Level) -> Probe | None:
        """Returns the best of the recipes that save everything at once, and of what else was simulated."""
        space = self._wider(level)
        new = [name for name in LEVELS if name in space.constraints.allow and name not in self._started]
        starts = [self._effective(_least(start)) for name in new for start in _STARTS[name]]
        self._started.update(new)
        wanted = [_joined(space, changes) for changes in starts]
        self._laboratory.look(wanted)
        for changes, recipe in zip(starts, wanted, strict=True):
            refusal = self._laboratory.refusals.get(recipe)
            possible = [change for change in changes if refusal is None or not set(change) & set(refusal.fields)]
            if len(possible) < len(changes):  # such as no head and loss that could be computed in chunks
                self._laboratory.look([_joined(space, possible)])
        probes = [self._laboratory.probes[recipe] for recipe in wanted if recipe in self._laboratory.probes]
        if any(map(space.exceeds_host, probes)):  # so nothing is kept there
            here = [[change for change in changes if not set(change) & ON_HOST] for changes in starts]
            self._laboratory.look([_joined(space, changes) for changes in here])
        return _leanest(space)

    def _effective(self, changes: Iterable[Changes]) -> list[Changes]:
        return self.space.effective(changes, self._laboratory.probes.get(self.space.base))

    def _wider(self, level: Level) -> Space:
        allowed = frozenset(LEVELS[: LEVELS.index(level) + 1]) | self.space.constraints.allow
        constraints = dataclasses.replace(self.space.constraints, allow=allowed)
        return dataclasses.replace(self.space, constraints=constraints)

    def find(self, level: Level, enough_bytes: int = 0, most_operators: int | None = None) -> Probe | None:
        """Returns the recipe of the least memory.

        `level`: the widest level of fidelity that is allowed, beside what the constraints allow.
        `enough_bytes`: nothing more is tried once a recipe needs no more than this.
        `most_operators`: nor once so many operators were simulated, beside what the search starts from; None: no limit.
        Its simulation; None where nothing at all can be simulated within the host's memory.
        """
        space = self._wider(level)
        best = self.start(level)
        self._most = math.inf if most_operators is None else self._laboratory.operators + most_operators
        if not self._settled:
            for _ in range(_ROUNDS):
                before, best = best, self._round(space, best, _moves("exact"), enough_bytes)
                if best is not None and best.need_bytes <= enough_bytes:
                    return best
                if best is None or (before is not None and best.need_bytes > 0.995 * before.need_bytes):
                    break
            self._settled = True
        for name in LEVELS[1:]:
            if name in space.constraints.allow and name not in self._widened:
                best = self._round(space, best, _moves(name), enough_bytes)
                if best is not None and best.need_bytes <= enough_bytes:
                    return best
                self._widened.add(name)
        return _leanest(space)

    def _round(self, space: Space, best: Probe | None, moves: Iterable[Changes], enough_bytes: int) -> Probe | None:
        """Tries every single change, and those that help together; stops once a recipe needs little enough."""
        start: Changes = {} if best is None else best.recipe.to_mapping()
        alone = self._effective(moves)
        for number in range(0, len(alone), WORKERS):
            leanest = _leanest(space)
            if leanest is not None and leanest.need_bytes <= enough_bytes:
                return leanest
            if self._laboratory.operators >= self._most:
                break
            space.look(*((start, move) for move in alone[number : number + WORKERS]))
        helped: list[tuple[int, Changes]] = []
        for move in alone:
            seen = space.seen(start, move)
            if seen is not None and (best is None or seen.need_bytes < 0.998 * best.need_bytes):
                helped.append((seen.need_bytes, move))
        if not helped:
            return _leanest(space)
        ordered = [move for _, move in sorted(helped, key=lambda item: item[0])]
        space.look((start, space.joined(ordered, start)))
        return _leanest(space)


def _leanest(space: Space) -> Probe | None:
    return min(space.usable(), key=lambda probe: (probe.need_bytes, probe.seconds), default=None)


def _joined(space: Space, changes: Iterable[Changes]) -> Recipe:
    """The recipe with every change that is allowed and contradicts no earlier one."""
    return (space.allowed(space.joined(changes)) or [space.base])[0]
