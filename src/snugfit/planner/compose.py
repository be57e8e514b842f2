"""Recipes put together from a few simulations: what checkpointing or offloading exactly these blocks would need and cost.

A simulation without checkpointing, one with every block checkpointed and one with everything offloaded show, for every
stretch of the step, what was alive and what each open block held. Another choice of blocks is then arithmetic: a block
that is checkpointed holds its inputs while it is open and is computed again in its own backward stretch. Smaller
microbatches scale what depends on samples, which two sizes tell apart from what does not. Which blocks to take is a
knapsack (HiGHS): the least extra time whose highest stretch fits.

All of it only ranks candidates. What is returned was simulated in full.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from snugfit.planner.probe import Probe
from snugfit.planner.profile import OUTSIDE, Label, Row
from snugfit.planner.space import PLAIN
from snugfit.recipe import Recipe

_ON_UPDATE = "optimizer"
_UNIT_BYTES = 2**20
"""Bytes are given to the solver in MiB, near which its tolerances lie."""
_ALIKE = 1.02
"""Blocks whose bytes cost so nearly the same time are as good as one another."""
_FEASIBLE = 2
"""What HiGHS calls a solution that keeps to all constraints."""


@dataclasses.dataclass(frozen=True, slots=True)
class Composed:
    """A guess at a recipe that was not simulated."""

    need_bytes: float
    """Memory it needs."""
    seconds: float
    """Time of a step."""
    checkpointed: tuple[int, ...] = ()
    """Indices of the blocks that are checkpointed."""
    offloaded: tuple[int, ...] = ()
    """Indices of the blocks whose activations are offloaded."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Composition:
    """Arithmetic on simulations that are all by the same precision, attention and loss."""

    batch: int
    """Samples of an update."""
    large: Probe
    """Nothing checkpointed, at the largest microbatch."""
    recipes: Mapping[int, Recipe]
    """Size of microbatch -> recipe by which nothing is checkpointed."""
    probes: Mapping[Recipe, Probe]
    """All simulations; they grow as the search goes on."""
    small_size: int | None
    """A small microbatch; None where microbatches are out of the question."""
    serial: bool
    """Whether host and device are one, so that their times add up."""
    checkpointed: Probe | None
    """Every block checkpointed, at the largest microbatch."""
    offloaded: Probe | None
    """Every activation offloaded, at the largest microbatch."""
    updates: Mapping[str, Probe]
    """Ways of updating, plain first -> nothing checkpointed, at the largest microbatch, updated in that way."""

    @functools.cached_property
    def _size(self) -> int:
        """The largest microbatch."""
        return self.large.recipe.microbatch_size or self.batch

    @functools.cached_property
    def _small(self) -> tuple[int, Probe] | None:
        """The small microbatch and its simulation."""
        found = None if self.small_size is None else self.plain(self.small_size)
        return None if found is None or self.small_size is None else (self.small_size, found)

    @functools.cached_property
    def _drops(self) -> tuple[list[float], dict[Label, float]]:
        return self._difference(self.checkpointed)

    @functools.cached_property
    def _left(self) -> tuple[list[float], dict[Label, float]]:
        return self._difference(self.offloaded)

    @functools.cached_property
    def _constants(self) -> dict[Label, float]:
        """What of each stretch does not depend on samples, such as weights cast by autocast."""
        return {label: self._constant_of(label) for label in self.large.profile.rows}

    def plain(self, size: int) -> Probe | None:
        """Returns the simulation in which nothing is checkpointed, if there is one by now.

        Args:
            size: Samples of a microbatch.
        """
        return self.probes.get(self.recipes[size]) if size in self.recipes else None

    def pieces(self, size: int) -> int:
        """Returns how many microbatches of a size make the batch."""
        return -(-self.batch // size)

    # Time ----------------------------------------------------------------------------------------------------------

    def plain_seconds(self, size: int, update: str = PLAIN) -> float:
        """Returns the time of a step that checkpoints and offloads nothing.

        Args:
            size: Samples of a microbatch.
            update: A way of updating.
        """
        shift = self.updates[update].seconds - self.large.seconds
        seen = self.plain(size)
        if seen is not None:
            return seen.seconds + shift
        passes, end = self._passes(self.large)
        if self._small is None:
            return end + passes + shift
        # A microbatch takes as long as the host needs to issue it, or the card to work it off, which grows with samples.
        small_size, small = self._small
        small_pieces = self.pieces(small_size)
        device_low = _device_passes(small) / small_pieces
        device_high = _device_passes(self.large) / self.pieces(self._size)
        part = (size - small_size) / max(self._size - small_size, 1)
        device = device_low * size / small_size if part < 0 else device_low + (device_high - device_low) * part
        host = small.timing.host_seconds / small_pieces
        piece = device + host if self.serial else max(device, host)
        return end + piece * self.pieces(size) + shift

    def _passes(self, probe: Probe) -> tuple[float, float]:
        end = probe.timing.phase_seconds.get(_ON_UPDATE, 0.0)
        return probe.seconds - end, end

    def point_seconds(self, probe: Probe, size: int, update: str = PLAIN) -> float:
        """Returns the time of a step that does to its blocks what a simulation at the largest microbatch did.

        Args:
            probe: That simulation.
            size: Samples of a microbatch.
            update: A way of updating.
        """
        extra = probe.seconds - self.large.seconds
        plain = self.plain_seconds(size)
        passes, end = self._passes(self.large)
        return self.plain_seconds(size, update) + extra * max(plain - end, 0.0) / max(passes, 1e-12)

    # Memory --------------------------------------------------------------------------------------------------------

    def point_bytes(self, probe: Probe, size: int, update: str = PLAIN) -> float:
        """Returns what a step needs that does to its blocks what a simulation at the largest microbatch did.

        Args:
            probe: That simulation.
            size: Samples of a microbatch.
            update: A way of updating.
        """
        highest = self._outside(update)
        for label, row in probe.profile.rows.items():
            constant = min(self._constants.get(label, 0.0), row.other_bytes)
            other = constant + (row.other_bytes - constant) * size / self._size
            highest = max(highest, self._held(label, row, size, update) + other)
        return highest * _overhead(probe)

    def chosen(self, size: int, update: str, capacity_bytes: float, *, offload: bool) -> Composed | None:
        """Returns the cheapest choice of blocks that fits.

        Args:
            size: Samples of a microbatch.
            update: A way of updating.
            capacity_bytes: Memory there is.
            offload: Whether blocks may be offloaded, beside checkpointed ones.

        Returns:
            The choice; None where no choice fits, or the simulations it takes are missing.
        """
        checkpointed, offloaded = self.checkpointed, self.offloaded if offload else None
        if (checkpointed is None and offloaded is None) or (offload and offloaded is None):
            return None
        used = [probe for probe in (self.large, checkpointed, offloaded) if probe is not None]
        # The lowest of them: a guess that turns out too low is corrected, one that is too high is never tried.
        overhead = min(_overhead(probe) for probe in used)
        room_bytes = capacity_bytes / overhead
        if self._outside(update) > room_bytes:
            return None
        again, away = self._recompute_seconds(size), self._copy_seconds()
        first = self._first_blocks(size, update, room_bytes) if checkpointed is not None else None
        if offload and first is not None and not self._copies_are_cheaper(again, away):
            return None
        found = None if offload or first is None else self._proved(size, update, room_bytes, again, first)
        if found is None and (offload or first is not None):
            found = self._knapsack(size, update, room_bytes, again if checkpointed is not None else [], away, offload)
        if found is None:
            return None
        taken, moved = found
        extra = sum(again[i] for i in taken) + sum(away[i] for i in moved)
        need = min(self._level(size, update, taken, moved) * overhead, capacity_bytes)
        return Composed(need, self.plain_seconds(size, update) + extra, taken, moved)

    def _first_blocks(self, size: int, update: str, room_bytes: float) -> int | None:
        """How many blocks from the front must be checkpointed to fit; None where all of them do not suffice."""
        low, high = -1, len(self.large.profile.saved_bytes)
        if self._level(size, update, tuple(range(high)), ()) > room_bytes:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if self._level(size, update, tuple(range(middle)), ()) <= room_bytes:
                high = middle
            else:
                low = middle
        return high

    def _proved(
        self, size: int, update: str, room_bytes: float, again: list[float], first: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The blocks from the front, where no choice can be cheaper: as few of them, each the cheapest there is."""
        missing = self._level(size, update, (), ()) - room_bytes
        fewest = 0
        for drop in sorted(self._drops[0], reverse=True):
            if missing <= 0:
                break
            missing -= drop * size / self._size
            fewest += 1
        cheapest = sum(sorted(again)[:fewest])
        if sum(again[:first]) > _ALIKE * cheapest:
            return None
        return tuple(range(first)), ()

    def _copies_are_cheaper(self, again: list[float], away: list[float]) -> bool:
        """Whether some block is offloaded for less time a byte than it is computed again."""
        kept, left = self._drops[0], self._left[0]
        return any(
            gone > 0 and cost / gone < other / max(drop, 1.0)
            for cost, gone, other, drop in zip(away, left, again, kept, strict=True)
        )

    def _knapsack(
        self,
        size: int,
        update: str,
        room_bytes: float,
        again: list[float],
        away: list[float],
        offload: bool,
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The choice of blocks with the least extra time whose every stretch fits."""
        import highspy

        scale, count = size / self._size, len(self.large.profile.saved_bytes)
        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        solver.silent()
        for option, value in (("mip_rel_gap", 5e-3), ("time_limit", 0.3), ("threads", 1)):
            solver.setOptionValue(option, value)
        kept, inner = self._drops
        left, inner_left = self._left
        unit = max([*again, *away, 1e-12])
        x = [solver.addBinary(obj=cost / unit) for cost in again]
        y = [solver.addBinary(obj=cost / unit) for cost in away] if offload else []
        if x and y:
            for one, other in zip(x, y, strict=True):
                solver.addConstr(one + other <= 1)
        for label, row in self.large.profile.rows.items():
            level = self._held(label, row, size, update) + self._other(label, row, size)
            weights: dict[int, float] = {}
            for choice, drops, inside in ((x, kept, inner), (y, left, inner_left)):
                if choice and label[1] != OUTSIDE:
                    at = choice[label[1]].index
                    weights[at] = weights.get(at, 0.0) + inside.get(label, 0.0) * scale
                for i in row.open if choice else ():
                    weights[choice[i].index] = weights.get(choice[i].index, 0.0) - drops[i] * scale
            if not weights and level > room_bytes:
                return None
            if weights:
                columns = [*x, *y]
                terms = [columns[at] * (weight / _UNIT_BYTES) for at, weight in weights.items()]
                solver.addConstr(solver.qsum(terms) <= (room_bytes - level) / _UNIT_BYTES)
        solver.run()
        if solver.getInfo().primal_solution_status != _FEASIBLE:
            return None
        values = solver.getSolution().col_value
        return (
            tuple(i for i in range(count) if x and values[x[i].index] > 0.5),
            tuple(i for i in range(count) if y and values[y[i].index] > 0.5),
        )

    def _level(self, size: int, update: str, taken: tuple[int, ...], moved: tuple[int, ...]) -> float:
        scale = size / self._size
        drops, inner = self._drops
        away, inner_away = self._left
        highest = self._outside(update)
        for label, row in self.large.profile.rows.items():
            level = self._held(label, row, size, update) + self._other(label, row, size)
            level -= scale * sum(drops[i] for i in row.open if i in taken)
            level -= scale * sum(away[i] for i in row.open if i in moved)
            if label[1] in taken:
                level += inner.get(label, 0) * scale
            if label[1] in moved:
                level += inner_away.get(label, 0) * scale
            highest = max(highest, level)
        return highest

    def _outside(self, update: str) -> float:
        return self.updates[update].profile.outside_bytes

    def _constant_of(self, label: Label) -> float:
        if self._small is None or label not in self._small[1].profile.rows:
            return 0.0
        size, small = self._small
        high, low = self.large.profile.rows[label].other_bytes, small.profile.rows[label].other_bytes
        return max(low - (high - low) * size / max(self._size - size, 1), 0.0)

    def _other(self, label: Label, row: Row, size: int) -> float:
        constant = self._constants[label]
        return constant + (row.other_bytes - constant) * size / self._size

    def _held(self, label: Label, row: Row, size: int, update: str) -> float:
        """Weights, state and gradients in a stretch."""
        fixed, gradients = row.fixed_bytes, row.gradient_bytes
        if self._small is not None and self.pieces(size) > 1 and self.pieces(self._size) == 1:
            small = self._small[1].profile
            seen = small.rows.get(label)
            gradients = seen.gradient_bytes if seen is not None else small.gradient_bytes
        base, other = self.large.profile.rows.get(label), self.updates[update].profile.rows.get(label)
        if base is not None and other is not None:
            fixed += other.fixed_bytes - base.fixed_bytes
            if self.pieces(size) == 1:
                gradients += other.gradient_bytes - base.gradient_bytes
        return max(fixed, 0) + max(gradients, 0)

    def _difference(self, probe: Probe | None) -> tuple[list[float], dict[Label, float]]:
        """What a block holds less while it is open, and what its own stretch needs more, at the largest microbatch."""
        base = self.large.profile
        if probe is None:
            return [0.0] * len(base.saved_bytes), {}
        other = probe.profile
        drops = [float(before - after) for before, after in zip(base.saved_bytes, other.saved_bytes, strict=True)]
        inner = {}
        for label, row in base.rows.items():
            seen = other.rows.get(label)
            if seen is None or label[1] == OUTSIDE:
                continue
            own = row.other_bytes - sum(base.saved_bytes[i] for i in row.open)
            inner[label] = float(seen.other_bytes - sum(other.saved_bytes[i] for i in seen.open) - own)
        return drops, inner

    def _recompute_seconds(self, size: int) -> list[float]:
        probe = self.checkpointed
        count = len(self.large.profile.saved_bytes)
        if probe is None:
            return [0.0] * count
        total = max(self.point_seconds(probe, size) - self.plain_seconds(size), 0.0)
        weights = self.large.profile.forward_seconds
        return [total * weight / max(sum(weights), 1e-12) for weight in weights]

    def _copy_seconds(self) -> list[float]:
        """What offloading each block costs: its part of what offloading everything cost, copies being short of compute."""
        probe = self.offloaded
        count = len(self.large.profile.saved_bytes)
        if probe is None:
            return [0.0] * count
        extra = max(probe.seconds - self.large.seconds, 0.0)
        moved = self._left[0]
        whole = max(sum(moved), 1.0)
        return [extra * size / whole for size in moved]


def _device_passes(probe: Probe) -> float:
    """What the card computes in forward and backward."""
    return max(probe.timing.device_seconds - probe.timing.phase_seconds.get(_ON_UPDATE, 0.0), 0.0)


def _overhead(probe: Probe) -> float:
    """What a recipe needs over the bytes of its tensors: rounding and fragments of the allocator."""
    highest = max([probe.profile.outside_bytes, *(row.total_bytes for row in probe.profile.rows.values())])
    return max(probe.need_bytes / max(highest, 1), 1.0)
