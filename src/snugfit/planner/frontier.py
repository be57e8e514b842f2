"""The recipes that no other beats in both memory and time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from snugfit.planner.probe import Probe
from snugfit.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FrontierPoint:
    """A simulated recipe that no other beats in both memory and time."""

    recipe: Recipe
    """The recipe."""
    total_bytes: int
    """What it reserves where memory is not short (on cpu: what its tensors take), with CUDA's context."""
    need_bytes: int
    """The smallest memory in which it goes through, CUDA's context apart."""
    step_seconds: float
    """Predicted seconds of a step."""
    host_bytes: int
    """Host memory that it takes."""


def frontier_of(probes: Iterable[Probe]) -> tuple[FrontierPoint, ...]:
    """Returns those of some simulated recipes that no other beats, least memory first."""
    points: list[FrontierPoint] = []
    for probe in sorted(probes, key=lambda one: (one.total_bytes, one.seconds)):
        if not points or probe.seconds < points[-1].step_seconds:
            points.append(
                FrontierPoint(
                    recipe=probe.recipe,
                    total_bytes=probe.total_bytes,
                    need_bytes=probe.need_bytes,
                    step_seconds=probe.seconds,
                    host_bytes=probe.host_bytes,
                )
            )
    return tuple(points)
