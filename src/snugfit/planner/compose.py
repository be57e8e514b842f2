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
from collections.abc import Iterable, Mapping, Sequence

from snugfit.planner.block_choice import Levels, Stretch
from snugfit.planner.probe import Probe
from snugfit.planner.profile import Label, Row
from snugfit.planner.space import PLAIN
from snugfit.planner.treatments import Treatment, cheaper, difference, divided
from snugfit.recipe import Recipe

ON_UPDATE = "optimizer"
_MUCH, _LITTLE = 1.5, 1.1
"""What is so many times slower than something that needs hardly more than it, is of no use."""


@dataclasses.dataclass(frozen=True, slots=True)
class Composed:
    """A guess at a recipe that was not simulated."""

    need_bytes: float
    """Memory it needs."""
    seconds: float
    """Time of a step."""
    blocks: Mapping[str, tuple[int, ...]]
    """What is done to some blocks (`recompute`, `offload`) -> their indices."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Composition:
    """Arithmetic on simulations that share precision, attention and loss."""

    batch: int
    """Samples of an update."""
    largest: int
    """Samples of the largest microbatch."""
    large: Probe
    """Nothing done to any block, at the largest microbatch."""
    recipes: Mapping[int, Recipe]
    """Size of microbatch -> recipe by which nothing is checkpointed."""
    probes: Mapping[Recipe, Probe]
    """All simulations; they grow as the search goes on."""
    small_size: int | None
    """A small microbatch; None where microbatches are out of the question."""
    serial: bool
    """Whether host and device are one, so that their times add up."""
    recompute: Probe | None
    """Every block computed again in backward, at the largest microbatch."""
    offload: Probe | None
    """All that blocks hold gone to the host, at the largest microbatch."""
    updates: Mapping[str, Probe]
    """Ways of updating, plain first -> nothing checkpointed, at the largest microbatch, updated in that way."""

    @functools.cached_property
    def _small(self) -> tuple[int, Probe] | None:
        """The small microbatch and its simulation, if there is one by now."""
        found = None if self.small_size is None else self.plain(self.small_size)
        return None if found is None or self.small_size is None else (self.small_size, found)

    @functools.cached_property
    def _differences(self) -> dict[Recipe, tuple[list[float], dict[Label, float]]]:
        base, probes = self.large.profile, (self.recompute, self.offload)
        return {probe.recipe: difference(base, probe.profile) for probe in probes if probe is not None}

    @functools.cached_property
    def _constants(self) -> dict[Label, float]:
        """The bytes of each stretch that do not depend on samples, such as weights cast by autocast."""
        return {label: self._constant_of(label) for label in self.large.profile.rows}

    def plain(self, size: int) -> Probe | None:
        """Returns the simulation at this microbatch size without checkpointing, if there is one by now."""
        return self.probes.get(self.recipes[size]) if size in self.recipes else None

    def pieces(self, size: int) -> int:
        """Returns how many microbatches of a size make the batch."""
        return -(-self.batch // size)

    # Time ----------------------------------------------------------------------------------------------------------

    def plain_seconds(self, size: int, update: str = PLAIN) -> float:
        """Returns the time of a step without checkpointing and offloading, by some way of updating."""
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
        device_high = _device_passes(self.large) / self.pieces(self.largest)
        part = (size - small_size) / max(self.largest - small_size, 1)
        device = device_low * size / small_size if part < 0 else device_low + (device_high - device_low) * part
        host = small.timing.host_seconds / small_pieces
        piece = device + host if self.serial else max(device, host)
        return end + piece * self.pieces(size) + shift

    def _passes(self, probe: Probe) -> tuple[float, float]:
        end = probe.timing.phase_seconds.get(ON_UPDATE, 0.0)
        return probe.seconds - end, end

    def point_seconds(self, probe: Probe, size: int, update: str = PLAIN) -> float:
        """Returns the time of a step that treats blocks as `probe`, a simulation at the largest microbatch, did."""
        plain, updated = self.plain_seconds(size), self.plain_seconds(size, update)
        passes, end = self._passes(self.large)
        grown = max(plain - end, 0.0) / max(passes, 1e-12)
        work = max(probe.timing.device_seconds, probe.timing.host_seconds)
        if probe.timing.link_seconds <= work:
            return updated + (probe.seconds - self.large.seconds) * grown
        # Copies decide: they take as long for the batch in any pieces, and hide behind work that pieces make more of.
        return max(updated + max(work - self.large.seconds, 0.0) * grown, probe.seconds + updated - plain)

    # Memory --------------------------------------------------------------------------------------------------------

    def point_bytes(self, probe: Probe, size: int, update: str = PLAIN) -> float:
        """Returns the bytes of a step that treats blocks as `probe`, a simulation at the largest microbatch, did."""
        highest = self._outside(update)
        for label, row in probe.profile.rows.items():
            constant = min(self._constants.get(label, 0.0), row.other_bytes)
            other = constant + (row.other_bytes - constant) * size / self.largest
            highest = max(highest, self._held(label, row, size, update) + other)
        return highest * overhead(probe)

    def least_bytes(self, size: int) -> float:
        """Returns the least that a step can need at a microbatch size: all blocks computed again, their inputs away."""
        probe = self.recompute or self.large
        inputs = sum(probe.profile.saved_bytes) * size / self.largest
        return min(self.point_bytes(probe, size, update) for update in self.updates) - inputs * overhead(probe)

    def gains_by(self, probe: Probe, others: Iterable[Probe]) -> bool:
        """Returns whether doing something to all blocks (`probe`) gains over choices of blocks, and over the `others`."""
        if probe is self.offload and self.recompute is not None:
            recompute, offload = self.treatments(self.largest)
            if recompute is not None and cheaper(offload, recompute):
                return True
        chosen = self.chosen(self.largest, PLAIN, probe.need_bytes, offloads=False)
        if chosen is not None:
            return probe.seconds < chosen.seconds
        known = [one for one in (*others, self.recompute) if one is not None]
        return not any(
            _MUCH * one.seconds < probe.seconds and one.need_bytes <= _LITTLE * probe.need_bytes for one in known
        )

    def chosen(self, size: int, update: str, capacity_bytes: float, *, offloads: bool) -> Composed | None:
        """Returns the cheapest choice of blocks that fits.

        `offloads`: whether blocks may be offloaded, beside checkpointed ones.
        The choice; None where no choice fits, or the simulations it takes are missing.
        """
        recompute, offload = self.treatments(size)
        if (offload if offloads else recompute) is None:
            return None
        used = [self.large, self.recompute, self.offload if offloads else None]
        # The lowest of them: a guess that turns out too low is corrected, one that is too high is never tried.
        factor = min(overhead(probe) for probe in used if probe is not None)
        levels = self.levels(size, update)
        found = levels.choice(capacity_bytes / factor, recompute, offload if offloads else None)
        if found is None:
            return None
        need = min(levels.highest(found) * factor, capacity_bytes)
        done = {"recompute": recompute, "offload": offload}
        blocks = {how: tuple(block for block in sorted(found) if found[block] is one) for how, one in done.items()}
        extra = sum(one.seconds[block] for block, one in found.items())
        return Composed(need, self.plain_seconds(size, update) + extra, blocks)

    def levels(self, size: int, update: str) -> Levels:
        """Returns the bytes of every stretch while nothing is done to any block."""
        rows = self.large.profile.rows.items()
        stretches = [
            Stretch(label, row.open, self._held(label, row, size, update) + self._other(label, row, size))
            for label, row in rows
        ]
        return Levels(stretches, self._outside(update), size / self.largest)

    def of_blocks(self, size: int, update: str, done: Mapping[str, Sequence[int] | None]) -> tuple[float, float] | None:
        """Returns seconds and bytes of a step that does something (`recompute`, `offload`) to blocks of some indices."""
        ways = dict(zip(("recompute", "offload"), self.treatments(size), strict=True))
        if any(ways[how] is None for how, blocks in done.items() if blocks):
            return None
        taken = {block: one for how, blocks in done.items() if (one := ways[how]) is not None for block in blocks or ()}
        extra = sum(one.seconds[block] for block, one in taken.items())
        return self.plain_seconds(size, update) + extra, self.levels(size, update).highest(taken) * overhead(self.large)

    def _outside(self, update: str) -> float:
        return self.updates[update].profile.outside_bytes

    def _constant_of(self, label: Label) -> float:
        if self._small is None or label not in self._small[1].profile.rows:
            return 0.0
        size, small = self._small
        high, low = self.large.profile.rows[label].other_bytes, small.profile.rows[label].other_bytes
        return max(low - (high - low) * size / max(self.largest - size, 1), 0.0)

    def _other(self, label: Label, row: Row, size: int) -> float:
        constant = self._constants[label]
        return constant + (row.other_bytes - constant) * size / self.largest

    def _held(self, label: Label, row: Row, size: int, update: str) -> float:
        """Weights, state and gradients in a stretch."""
        fixed, gradients = row.fixed_bytes, row.gradient_bytes
        if self._small is not None and self.pieces(size) > 1 and self.pieces(self.largest) == 1:
            small = self._small[1].profile
            seen = small.rows.get(label)
            gradients = seen.gradient_bytes if seen is not None else small.gradient_bytes
        base, other = self.large.profile.rows.get(label), self.updates[update].profile.rows.get(label)
        if base is not None and other is not None:
            fixed += other.fixed_bytes - base.fixed_bytes
            if self.pieces(size) == 1:
                gradients += other.gradient_bytes - base.gradient_bytes
        return max(fixed, 0) + max(gradients, 0)

    def treatments(self, size: int) -> tuple[Treatment | None, Treatment | None]:
        """Returns checkpointing and offloading, as far as they were simulated at this microbatch size."""
        recompute = offload = None
        if self.recompute is not None:
            total = self.point_seconds(self.recompute, size) - self.plain_seconds(size)
            drops, inner = self._differences[self.recompute.recipe]
            recompute = Treatment(drops, inner, divided(total, self.large.profile.forward_seconds, 1e-12))
        if self.offload is not None:  # copies being short of compute, every byte costs the same
            drops, inner = self._differences[self.offload.recipe]
            offload = Treatment(drops, inner, divided(self.offload.seconds - self.large.seconds, drops, 1.0))
        return recompute, offload


def _device_passes(probe: Probe) -> float:
    """The seconds that the card computes in forward and backward."""
    return max(probe.timing.device_seconds - probe.timing.phase_seconds.get(ON_UPDATE, 0.0), 0.0)


def overhead(probe: Probe) -> float:
    """Returns a recipe's need over the bytes of its tensors: the allocator's rounding and fragments."""
    return max(probe.need_bytes / max(probe.profile.most_bytes, 1), 1.0)
