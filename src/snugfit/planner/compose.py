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
from collections.abc import Mapping

from snugfit.planner.probe import Probe
from snugfit.planner.profile import OUTSIDE, Label, Row

_ON_UPDATE = "optimizer"
_SCALE = 2**20
"""Bytes are given to the solver in MiB, near which its tolerances lie."""


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
class Sims:
    """The simulations that recipes are put together from; all by the same precision, attention and loss."""

    batch: int
    """Samples of an update."""
    large: Probe
    """Nothing checkpointed, at the largest microbatch."""
    small: Probe | None
    """The same at a small microbatch; None where microbatches are out of the question."""
    checkpointed: Probe | None
    """Every block checkpointed, at the largest microbatch."""
    offloaded: Probe | None
    """Every activation offloaded, at the largest microbatch."""
    updates: Mapping[str, Probe]
    """Ways of updating -> nothing checkpointed, at the largest microbatch, updated in that way."""

    @property
    def large_size(self) -> int:
        """The largest microbatch."""
        return self.large.recipe.microbatch_size or self.batch


class Composition:
    """Arithmetic on the simulations."""

    def __init__(self, sims: Sims) -> None:
        """Takes the simulations.

        Args:
            sims: What was simulated.
        """
        self.sims = sims
        self._base = sims.large.profile
        self._size = sims.large_size

    def pieces(self, size: int) -> int:
        """Returns how many microbatches of a size make the batch."""
        return -(-self.sims.batch // size)

    # Time ----------------------------------------------------------------------------------------------------------

    def plain_seconds(self, size: int, update: str | None = None) -> float:
        """Returns the time of a step that checkpoints and offloads nothing.

        Args:
            size: Samples of a microbatch.
            update: A way of updating, or None for the simulated one.
        """
        sims = self.sims
        shift = 0.0 if update is None else sims.updates[update].seconds - sims.large.seconds
        passes, end = self._passes(sims.large)
        if size == self._size:
            return sims.large.seconds + shift
        if sims.small is None:
            return end + passes + shift
        small_size = sims.small.recipe.microbatch_size or sims.batch
        small_passes, _ = self._passes(sims.small)
        large_piece = passes / self.pieces(self._size)
        small_piece = small_passes / self.pieces(small_size)
        if size >= small_size:
            part = (size - small_size) / max(self._size - small_size, 1)
            piece = small_piece + (large_piece - small_piece) * part
        else:
            host_piece = sims.small.timing.host_seconds / self.pieces(small_size)
            piece = max(min(host_piece, small_piece), small_piece * size / small_size)
        return end + piece * self.pieces(size) + shift

    def _passes(self, probe: Probe) -> tuple[float, float]:
        end = probe.timing.phase_seconds.get(_ON_UPDATE, 0.0)
        return probe.seconds - end, end

    def point_seconds(self, probe: Probe, size: int, update: str | None = None) -> float:
        """Returns the time of a step that does to its blocks what a simulation at the largest microbatch did.

        Args:
            probe: That simulation.
            size: Samples of a microbatch.
            update: A way of updating.
        """
        extra = probe.seconds - self.sims.large.seconds
        plain = self.plain_seconds(size)
        passes, end = self._passes(self.sims.large)
        return self.plain_seconds(size, update) + extra * max(plain - end, 0.0) / max(passes, 1e-12)

    # Memory --------------------------------------------------------------------------------------------------------

    def point_bytes(self, probe: Probe, size: int, update: str | None = None) -> float:
        """Returns what a step needs that does to its blocks what a simulation at the largest microbatch did.

        Args:
            probe: That simulation.
            size: Samples of a microbatch.
            update: A way of updating.
        """
        highest = self._outside(update)
        for label, row in probe.profile.rows.items():
            constant = min(self._constant(label), row.other_bytes)
            other = constant + (row.other_bytes - constant) * size / self._size
            highest = max(highest, self._held(label, row, size, update) + other)
        return highest * _overhead(probe)

    def chosen(self, size: int, update: str | None, capacity_bytes: float, *, offload: bool) -> Composed | None:
        """Returns the cheapest choice of blocks that fits.

        Args:
            size: Samples of a microbatch.
            update: A way of updating.
            capacity_bytes: Memory there is.
            offload: Whether blocks may be offloaded, beside checkpointed ones.

        Returns:
            The choice; None where no choice fits, or the simulations it takes are missing.
        """
        checkpointed, offloaded = self.sims.checkpointed, self.sims.offloaded if offload else None
        if (checkpointed is None and offloaded is None) or (offload and offloaded is None):
            return None
        overhead = max(_overhead(probe) for probe in (self.sims.large, checkpointed, offloaded) if probe is not None)
        if self._outside(update) * overhead > capacity_bytes:
            return None
        import highspy

        scale = size / self._size
        count = len(self._base.saved_bytes)
        solver = highspy.Highs()
        solver.silent()
        solver.setOptionValue("mip_rel_gap", 0.002)
        solver.setOptionValue("time_limit", 2.0)
        solver.setOptionValue("threads", 1)
        again = self._recompute_seconds(size)
        drops, inner = self._difference(checkpointed)
        away, inner_away = self._difference(offloaded)
        link, free = self._link_seconds()
        x = [solver.addBinary(obj=again[i]) for i in range(count)] if checkpointed is not None else []
        y = [solver.addBinary(obj=1e-6 * link[i]) for i in range(count)] if offloaded is not None else []
        if y:
            late = solver.addVariable(lb=0.0, obj=1.0)
            solver.addConstr(sum(link[i] * y[i] for i in range(count)) - late <= free)
        if x and y:
            for i in range(count):
                solver.addConstr(x[i] + y[i] <= 1)
        for label, row in self._base.rows.items():
            saved = sum(self._saved(i, size) for i in row.open)
            held = self._held(label, row, size, update) + self._other(label, row, size) - saved
            terms: list[tuple[float, object]] = []
            level = held + saved
            block = label[1]
            if block != OUTSIDE:
                if x:
                    terms.append((inner.get(label, 0) * scale, x[block]))
                if y:
                    terms.append((inner_away.get(label, 0) * scale, y[block]))
            for i in row.open:
                if x:
                    terms.append((-drops[i] * scale, x[i]))
                if y:
                    terms.append((-away[i] * scale, y[i]))
            room = (capacity_bytes / overhead - level) / _SCALE
            if not terms:
                if room < 0:
                    return None
                continue
            solver.addConstr(sum(weight / _SCALE * variable for weight, variable in terms) <= room)
        solver.run()
        if solver.getInfo().primal_solution_status != 2:
            return None
        values = solver.getSolution().col_value
        taken = tuple(i for i in range(count) if x and values[x[i].index] > 0.5)
        moved = tuple(i for i in range(count) if y and values[y[i].index] > 0.5)
        wait = max(sum(link[i] for i in moved) - free, 0.0) if moved else 0.0
        seconds = self.plain_seconds(size, update) + sum(again[i] for i in taken) + wait
        return Composed(min(self._level(size, update, taken, moved) * overhead, capacity_bytes), seconds, taken, moved)

    def _level(self, size: int, update: str | None, taken: tuple[int, ...], moved: tuple[int, ...]) -> float:
        scale = size / self._size
        drops, inner = self._difference(self.sims.checkpointed)
        away, inner_away = self._difference(self.sims.offloaded)
        highest = self._outside(update)
        for label, row in self._base.rows.items():
            level = self._held(label, row, size, update) + self._other(label, row, size)
            level -= scale * sum(drops[i] for i in row.open if i in taken)
            level -= scale * sum(away[i] for i in row.open if i in moved)
            if label[1] in taken:
                level += inner.get(label, 0) * scale
            if label[1] in moved:
                level += inner_away.get(label, 0) * scale
            highest = max(highest, level)
        return highest

    def _outside(self, update: str | None) -> float:
        return (self.sims.large if update is None else self.sims.updates[update]).profile.outside_bytes

    def _constant(self, label: Label) -> float:
        """What of a stretch does not depend on samples, such as weights cast by autocast."""
        small = self.sims.small
        if small is None or label not in self._base.rows or label not in small.profile.rows:
            return 0.0
        size = small.recipe.microbatch_size or self.sims.batch
        high, low = self._base.rows[label].other_bytes, small.profile.rows[label].other_bytes
        return max(low - (high - low) * size / max(self._size - size, 1), 0.0)

    def _other(self, label: Label, row: Row, size: int) -> float:
        constant = self._constant(label)
        return constant + (row.other_bytes - constant) * size / self._size

    def _saved(self, block: int, size: int) -> float:
        large = self._base.saved_bytes[block]
        small = self.sims.small
        if small is None:
            return large * size / self._size
        small_size = small.recipe.microbatch_size or self.sims.batch
        low = small.profile.saved_bytes[block]
        return low + (large - low) * (size - small_size) / max(self._size - small_size, 1)

    def _held(self, label: Label, row: Row, size: int, update: str | None) -> float:
        """Weights, state and gradients in a stretch."""
        fixed, gradients = row.fixed_bytes, row.gradient_bytes
        small = self.sims.small
        if small is not None and self.pieces(size) > 1 and self.pieces(self._size) == 1:
            seen = small.profile.rows.get(label)
            gradients = seen.gradient_bytes if seen is not None else small.profile.gradient_bytes
        if update is not None:
            base, other = self._base.rows.get(label), self.sims.updates[update].profile.rows.get(label)
            if base is not None and other is not None:
                fixed += other.fixed_bytes - base.fixed_bytes
                if self.pieces(size) == 1:
                    gradients += other.gradient_bytes - base.gradient_bytes
        return max(fixed, 0) + max(gradients, 0)

    def _difference(self, probe: Probe | None) -> tuple[list[float], dict[Label, float]]:
        """What a block holds less while it is open, and what its own stretch needs more, at the largest microbatch."""
        base = self._base
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
        probe = self.sims.checkpointed
        count = len(self._base.saved_bytes)
        if probe is None:
            return [0.0] * count
        total = max(self.point_seconds(probe, size) - self.plain_seconds(size), 0.0)
        weights = self._base.forward_seconds
        return [total * weight / max(sum(weights), 1e-12) for weight in weights]

    def _link_seconds(self) -> tuple[list[float], float]:
        """Time of each block's copies, and how much of all copies hides behind the compute."""
        probe = self.sims.offloaded
        count = len(self._base.saved_bytes)
        if probe is None:
            return [0.0] * count, 0.0
        extra = max(probe.seconds - self.sims.large.seconds, 0.0)
        total = max(probe.timing.link_seconds - self.sims.large.timing.link_seconds, extra)
        moved = self._difference(probe)[0]
        whole = max(sum(moved), 1.0)
        return [total * size / whole for size in moved], total - extra


def _overhead(probe: Probe) -> float:
    """What a recipe needs over the bytes of its tensors: rounding and fragments of the allocator."""
    highest = max([probe.profile.outside_bytes, *(row.total_bytes for row in probe.profile.rows.values())])
    return max(probe.need_bytes / max(highest, 1), 1.0)
