"""Rivals of a plan: recipes that fit and promise about as much, for the run itself to find out which is the fastest.

A rival gives an update of the same fidelity, may take the plan's place between two steps, and is the fastest of its kind:
two numbers of checkpointed blocks differ by what the clock knows well, checkpointing and microbatches by what it may have
wrong. What does more than a faster rival, such as the same with one field more, is none. All of them were simulated for the
plan already. Imports no torch.
"""

from __future__ import annotations

import dataclasses

from snugfit.fidelity import fidelity
from snugfit.planner.closeness import fields_on
from snugfit.planner.probe import Probe
from snugfit.planner.space import Space
from snugfit.recipe import Recipe
from snugfit.training.changeable import problems_of_change

MOST = 3
"""Rivals of a plan at most."""
ABOUT = 2.0
"""Times the plan's predicted seconds up to which a recipe is a rival. Most published step times are predicted within 25 %
(docs/accuracy/clock.md), some by a factor; and being wrong about a rival costs four of its steps."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Rival:
    """A recipe that promises about as much as the plan's."""

    recipe: Recipe
    """The recipe."""
    step_seconds: float
    """Predicted seconds of a step."""
    peak_allocated_bytes: int
    """The most bytes of its tensors."""
    peak_reserved_bytes: int
    """The most that it reserves on a card where memory is not short, CUDA's context apart."""
    host_bytes: int
    """Host memory that it takes."""


def rivals_of(space: Space, best: Probe, capacity_bytes: int, context_bytes: int) -> tuple[Rival, ...]:
    """Returns the rivals of a plan, fastest first.

    Args:
        space: The recipes there are, and what was simulated.
        best: The plan's recipe.
        capacity_bytes: Memory there is, CUDA's context apart.
        context_bytes: What CUDA's context takes.
    """
    if best.recipe.compile != "none":  # each of them would be compiled in the middle of the run, for minutes
        return ()
    own = fidelity(best.recipe, space.workload)
    kinds = [_kind(best.recipe)]
    found = list[Rival]()
    for probe in sorted(space.usable(), key=lambda one: (one.seconds, one.need_bytes)):
        if probe.seconds > ABOUT * best.seconds or len(found) == MOST:
            break
        kind = _kind(probe.recipe)
        if any(kind >= other for other in kinds) or probe.need_bytes > capacity_bytes or probe.recipe.compile != "none":
            continue
        theirs = fidelity(probe.recipe, space.workload)
        alike = theirs.reasons.keys() <= own.reasons.keys() and set(theirs.unchecked) <= set(own.unchecked)
        if not alike or any(problems_of_change(best.recipe, probe.recipe, space.workload)):
            continue
        kinds.append(kind)
        found.append(
            Rival(
                recipe=probe.recipe,
                step_seconds=probe.seconds,
                peak_allocated_bytes=probe.allocated_bytes,
                peak_reserved_bytes=probe.total_bytes - context_bytes,
                host_bytes=probe.host_bytes,
            )
        )
    return tuple(found)


def _kind(recipe: Recipe) -> frozenset[tuple[str, str]]:
    """The fields that are on, each with the word for how; numbers, and which blocks, make no other kind."""
    values = {name: getattr(recipe, name) for name in fields_on(recipe)}
    return frozenset((name, _word(value)) for name, value in values.items())


def _word(value: object) -> str:
    return value if isinstance(value, str) and value != "all" and ":" not in value else "on"
