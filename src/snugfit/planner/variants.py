"""What changes the passes themselves (number format, loss, adapters): every choice with every other, where it is worth it.

A variant is one choice of each kind. Each choice is simulated alone; what two of them do together is guessed until their
variant is the most promising, and only then is it simulated, with what composition starts from.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from snugfit.planner.compose import ON_UPDATE, Composition
from snugfit.planner.probe import AT_ONCE, Probe
from snugfit.planner.space import AT_BUILD, BY_BLOCK, EVERYWHERE, PLAIN, POINTS, SIZE, Space, kinds_of, products, worded
from snugfit.recipe import Recipe
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.planning import Changes

HOPE = 0.95
"""Factor on guesses at the time of what was not simulated: they may be so much too slow."""
_HARDLY = 0.1
"""Gradients and state of less than this part of the weights, such as adapters', are not worth another way of updating."""
_ROOM = 1.1
"""Times the capacity that the least which was composed for a variant may take."""
_OTHERWISE = {word: point for word, point in POINTS.items() if point and point != EVERYWHERE["recompute"]}
"""What can be done to all blocks alike, other than computing them again."""
_FOLLOWS = tuple(row.fields[0] for row in TECHNIQUES if row.planning.follows is not None)
"""Fields that follow from the rest of a recipe."""


class Variants:
    """All variants, those that were composed, and guesses at the others."""

    def __init__(self, space: Space, sizes: Sequence[int], no_use: set[str]) -> None:
        """Simulates every choice alone; `sizes` are those of microbatch, largest first.

        `no_use`: what, done to all blocks, has shown to be of no use in one variant, is not tried in the next one.
        """
        self._space, self._sizes, self.no_use = space, sizes, no_use
        self._updates_by_kind = kinds_of(change for change in space.worth_trying("update") if space.allowed(change))
        updates = products([{}, *kind] for kind in self._updates_by_kind)
        self.updates = {name: change for name, change in updates.items() if space.allowed(change)}
        kinds = kinds_of(space.worth_trying("passes"))
        self._alone = [change for kind in kinds for change in kind]
        space.simulate(*((change,) for change in self._alone))
        kept = products(map(self._promising, kinds))
        self.changes = {name: change for name, change in kept.items() if space.allowed(change)}
        self.composed: dict[str, Composition] = {}
        self.later: list[tuple[Changes, ...]] = []
        """What comes next where the variant that is worked on is not the last."""
        self._impossible: set[str] = set()
        large = space.size_change(sizes[0])
        if space.on_cpu:  # a processor's cache may make a smaller microbatch the faster one
            space.simulate((large,), *((space.size_change(size),) for size in sizes))
        seen = [probe for size in sizes if (probe := space.seen(space.size_change(size))) is not None]
        whole = space.seen(large)
        self._cut = min((probe.seconds / whole.seconds for probe in seen), default=1.0) if whole is not None else 1.0

    @property
    def small_size(self) -> int | None:
        """The small microbatch that is simulated besides the largest; of one sample only where there is no other.

        The more pieces, the longer a simulation: three of them stand for all.
        """
        wanted = max(self._sizes[0] // 8, 2)
        return min(self._sizes[1:], key=lambda size: (abs(size - wanted), size), default=None)

    # Which are worth composing -------------------------------------------------------------------------------------

    def _promising(self, kind: Sequence[Changes]) -> list[Changes]:
        """The choices of a kind (or none) that gain something and that no other beats."""
        kept: list[tuple[Changes, Probe]] = []
        for change in ({}, *kind):
            one = self._space.seen(change)
            if one is not None and not any(_no_worse(other, one) for _, other in kept):
                kept = [(other, probe) for other, probe in kept if not dominates(one, probe)] + [(change, one)]
        return [change for change, _ in kept if not change or not self._hardly_worth(change)] or [{}]

    def _hardly_worth(self, change: Changes) -> bool:
        """Whether a choice is slower than plain passes and saves next to nothing, even with all blocks checkpointed."""
        for point in ({}, EVERYWHERE["recompute"]):
            if point:
                self._space.simulate((point,), (change, point))
            plain, mine = self._space.seen(point), self._space.seen(change, point)
            if plain is None or mine is None or mine is plain or not _hardly_saves(mine, plain):
                return False
        return True

    def widen(self, capacity_bytes: int, limit: float) -> bool:
        """Composes the most promising variant that was not composed yet; returns whether there was one.

        `limit`: seconds that it must promise to stay under.
        """
        large = self._space.size_change(self._sizes[0])
        tried: set[str] = set()
        while True:
            waiting = self.changes.keys() - self.composed.keys() - self._impossible - tried
            promises = {name: self._promise(name) for name in waiting}
            ordered = sorted(
                (seconds, name)
                for name, (seconds, weights) in promises.items()
                if seconds < limit and weights <= capacity_bytes
            )
            if not ordered:
                return False
            first, *others = (name for _, name in ordered)
            next_ones = [self.changes[name] for name in (first, *others[: AT_ONCE - 1])]
            if self._space.seen(next_ones[0], large) is None:
                self._space.simulate(*((change, large) for change in next_ones))
                if self._space.seen(next_ones[0], large) is not None:
                    continue  # what it really takes may put another one first
            tried.add(first)
            self.later = [
                start for name in others for each in self._starts(self.changes[name], large) for start in each
            ]
            if self._compose(first, capacity_bytes):
                return True

    def begin_from(self, recipe: Recipe) -> bool:
        """Composes around a recipe that fits and was found in another way; returns whether that was new."""
        base = self._space.base.to_mapping()
        apart = {SIZE, *_FOLLOWS, *AT_BUILD.fields, *(field for field, _ in BY_BLOCK.values())}
        apart |= {field for change in self.updates.values() for field in change}
        rest = {name: value for name, value in recipe.to_mapping().items() if name not in apart and value != base[name]}
        name = next((name for name, change in self.changes.items() if _alike(change, rest)), worded(rest))
        if name in self.composed or name in self._impossible:
            return False
        self.changes.setdefault(name, rest)
        return self._compose(name, None)

    def _promise(self, name: str) -> tuple[float, float]:
        """The least seconds and fewest bytes of weights, from what each choice does alone."""
        whole = self._space.seen(self.changes[name], self._space.size_change(self._sizes[0]))
        if whole is not None:
            return self._least_seconds(whole), whole.profile.weight_bytes
        plain = self._space.seen({})
        alone = [self._space.seen(change) for change in self._alone if change.items() <= self.changes[name].items()]
        if plain is None or None in alone:
            return 0.0, 0.0
        parts = [probe for probe in alone if probe is not None]
        seconds = math.prod(self._least_seconds(part) / self._least_seconds(plain) for part in parts)
        weights = plain.profile.weight_bytes
        share = math.prod(part.profile.weight_bytes / max(weights, 1) for part in parts)
        return seconds * self._least_seconds(plain) * HOPE, weights * share

    def _least_seconds(self, probe: Probe) -> float:
        """The least seconds of a variant: another way of updating, if there is one, may cost nothing."""
        update = probe.timing.phase_seconds.get(ON_UPDATE, 0.0) if len(self.updates) > 1 else 0.0
        return max(probe.seconds - update, 1e-12) * self._cut

    # What composition starts from ----------------------------------------------------------------------------------

    def _starts(self, change: Changes, large: Changes) -> tuple[list[tuple[Changes, ...]], list[tuple[Changes, ...]]]:
        """What is simulated of a variant beside itself: what shows whether it may fit, and then the rest."""
        small = [] if self.small_size is None else [(change, self._space.size_change(self.small_size))]
        rest: list[tuple[Changes, ...]]
        rest = [(change, large, point) for word, point in _OTHERWISE.items() if word not in self.no_use]
        return [(change, large, EVERYWHERE["recompute"]), *small], rest

    def _compose(self, name: str, capacity_bytes: int | None) -> bool:
        """Simulates what a variant is composed from; stops as soon as it cannot fit."""
        space, change = self._space, self.changes[name]
        large = space.size_change(self._sizes[0])
        probe = space.tried(change, large)
        if probe is None:
            self._impossible.add(name)
            return False
        built = space.built_elsewhere(probe)
        if built:
            self.changes[name] = change = {**change, **built}
            probe = space.seen(change, large) or probe
        soon, rest = self._starts(change, large)
        surely = capacity_bytes is None or probe.profile.outside_bytes <= capacity_bytes
        updates = self._updates(change, probe, soon if surely else [])
        if capacity_bytes is not None and min(one.profile.outside_bytes for one in updates.values()) > capacity_bytes:
            return False
        space.simulate(*soon, ahead=[*rest, *self.later])
        composition = self._composition(change, probe, updates)
        if capacity_bytes is not None and composition.least_bytes(self._sizes[-1]) > _ROOM * capacity_bytes:
            return False
        space.simulate(*rest, ahead=self.later)
        self.composed[name] = composition = self._composition(change, probe, updates)
        seen = {
            word: one for word, point in _OTHERWISE.items() if (one := space.seen(change, large, point)) is not None
        }
        self.no_use.update(word for word in seen if not composition.gains_by(seen[word], seen.values()))
        return True

    def _composition(self, change: Changes, probe: Probe, updates: Mapping[str, Probe]) -> Composition:
        """Arithmetic on all that is simulated by now of a variant."""
        space, large = self._space, self._space.size_change(self._sizes[0])
        sized = {size: space.allowed(change, space.size_change(size)) for size in self._sizes}
        return Composition(
            batch=space.batch or self._sizes[0],
            largest=self._sizes[0],
            large=probe,
            recipes={size: recipe for size, allowed in sized.items() for recipe in allowed},
            probes=space.simulations.probes,
            small_size=self.small_size,
            serial=space.on_cpu,
            recompute=space.seen(change, large, EVERYWHERE["recompute"]),
            offload=space.seen(change, large, EVERYWHERE["offload"]),
            updates=updates,
        )

    def _updates(self, variant: Changes, probe: Probe, soon: Sequence[Sequence[Changes]]) -> dict[str, Probe]:
        """A variant with every way of updating: as simulated, or guessed from the two apart.

        `soon`: what is simulated beside, because it is needed next.
        """
        space, large = self._space, self._space.size_change(self._sizes[0])
        (held, gradients), weights = probe.profile.held_bytes, probe.profile.weight_bytes
        if held - weights + gradients < _HARDLY * weights:
            return {PLAIN: probe}
        for known in self.composed.values():  # weights, gradients and state of the same bytes are updated alike
            if len(known.updates) > 1 and known.large.profile.held_bytes == probe.profile.held_bytes:
                return {name: _shifted(probe, known.large, seen) for name, seen in known.updates.items()}
        alone = [change for kind in self._updates_by_kind for change in kind]
        space.simulate(*((variant, large, change) for change in alone), *soon)
        found: dict[str, Probe] = {}
        for name, change in self.updates.items():
            parts = [space.seen(variant, large, one) for one in alone if one.items() <= change.items()]
            if space.allowed(variant, large, change) and None not in parts:
                found[name] = probe
                for part in parts:
                    assert part is not None
                    found[name] = part if len(parts) == 1 else _shifted(found[name], probe, part)
        kept: dict[str, Probe] = {}
        for name, one in found.items():
            simpler = [other for other in kept if self.updates[other].keys() <= self.updates[name].keys()]
            if not any(_no_worse(kept[other], one) for other in simpler):
                kept[name] = one
        return kept


def _shifted(probe: Probe, base: Probe, other: Probe) -> Probe:
    """A probe plus what another way of updating changes in a third one."""
    seconds = probe.seconds + other.seconds - base.seconds
    return dataclasses.replace(probe, seconds=seconds, profile=probe.profile.shifted(base.profile, other.profile))


def _no_worse(one: Probe, other: Probe) -> bool:
    """Whether one takes no more of anything than another, up to noise."""
    mine, theirs = (
        (probe.seconds, probe.need_bytes, probe.profile.outside_bytes, *probe.profile.held_bytes)
        for probe in (one, other)
    )
    return all(a <= b * 1.001 for a, b in zip(mine, theirs, strict=True))


def dominates(one: Probe, other: Probe) -> bool:
    """Returns whether one needs less memory or time by more than noise, and no more of either."""
    no_more = one.need_bytes <= other.need_bytes and one.seconds <= other.seconds * (1 + 1e-9)
    return no_more and (one.need_bytes < 0.999 * other.need_bytes or one.seconds < 0.999 * other.seconds)


def _hardly_saves(one: Probe, other: Probe) -> bool:
    """Whether one is slower than another by more than noise, for hardly less memory."""
    return one.seconds > 1.01 * other.seconds and one.need_bytes > 0.99 * other.need_bytes


def _alike(change: Changes, rest: Mapping[str, object]) -> bool:
    return {name: value for name, value in change.items() if name not in AT_BUILD.fields} == rest
