"""Strategies by which GPUs share a training, as a plan tries them: which come first, may fit, and may win."""

from __future__ import annotations

from snugfit.planner.closeness import fields_on
from snugfit.planner.constraints import Constraints
from snugfit.planner.corrections import WORTH
from snugfit.planner.probe import Probe
from snugfit.planner.search import Search
from snugfit.planner.space import PLAIN, Space
from snugfit.planner.variants import HOPE
from snugfit.recipe import Recipe
from snugfit.techniques import TECHNIQUES
from snugfit.techniques.planning import Changes
from snugfit.techniques.shard import least_weights

_OF_PASSES = frozenset(field for row in TECHNIQUES if row.planning.part == "passes" for field in row.fields)


def in_order(strategies: list[Space], capacity: int) -> list[Space]:
    """Returns the strategies of which something may fit; last those whose weights and state are too large unchanged."""
    if len(strategies) == 1:
        return strategies
    left = [space for space in strategies if least_weights_of(space) <= capacity]
    strategies[0].simulations.simulate(space.base for space in left)

    def too_much(space: Space) -> bool:
        plain = space.simulations.probes.get(space.base)
        return plain is not None and plain.profile.outside_bytes > capacity

    return sorted(left, key=too_much)


def may_win(space: Space, best: Probe, capacity: int, led_by: Search | None) -> bool:
    """Returns whether a recipe of a strategy without recomputation may fit and be faster than the best."""
    plain = space.tried({})
    if plain is None:
        return False
    # What a number format or another loss gains is much the same in all strategies.
    gains = [1.0]
    if led_by is not None and PLAIN in led_by.compositions:
        seen = led_by.compositions
        gains = [one.large.seconds / seen[PLAIN].large.seconds for one in seen.values()]
    limit = best.seconds * (1 - WORTH)
    if plain.seconds * min(gains) * HOPE >= limit:
        return False
    variants: list[Changes] = [{}, *space.worth_trying("passes")]
    space.simulate(*((change,) for change in variants))
    faster = [change for change in variants if (probe := space.seen(change)) is not None and probe.seconds < limit]
    if any(probe.profile.outside_bytes <= capacity for change in faster if (probe := space.seen(change))):
        return True
    # Whatever is done to blocks, the update as it is does not fit.
    others = [(change, update) for change in faster for update in space.worth_trying("update")]
    space.simulate(*others)
    probes = [probe for pair in others if (probe := space.seen(*pair)) is not None]
    return any(probe.seconds < limit and probe.profile.outside_bytes <= capacity for probe in probes)


def fits_in(space: Space, capacity: int) -> bool:
    """Returns whether a simulated recipe of a strategy fits, on device and host."""
    return any(space.has(probe.recipe) and probe.need_bytes <= capacity for probe in space.usable())


def least_weights_of(space: Space) -> float:
    """Returns bytes of weights that every recipe of a strategy has on a GPU at some moment; no simulation needed."""
    part = least_weights(space.base, space.workload.ranks) * narrowest(space.constraints, space.base)
    return space.weight_bytes * part


def narrowest(constraints: Constraints, base: Recipe) -> float:
    """Returns the smallest part of their bytes that weights may be held in.

    Pins and wider fidelity may hold them in 16 bits or, what is not trained, in 4 and a little.
    """
    if "different" in constraints.allow or _OF_PASSES & set(fields_on(base)):
        return 1 / 8
    return 1 / 2 if "rounding" in constraints.allow else 1.0
