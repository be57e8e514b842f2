"""What can be done to single blocks: computing them again in backward, or moving what they save to the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from snugfit.planner.profile import OUTSIDE, Label, StepProfile


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Treatment:
    """What a treatment saves and costs, block by block."""

    drops: list[float]
    """For each block, what it holds less while it is open, at the largest microbatch."""
    inner: dict[Label, float]
    """What each block's own stretches need more."""
    seconds: list[float]
    """What it costs for each block."""


def difference(base: StepProfile, other: StepProfile) -> tuple[list[float], dict[Label, float]]:
    """Returns how many bytes a block saves while it is open, and how many more its own stretches need.

    `base`: nothing done to any block.
    `other`: the same done to every block.
    """
    drops = [float(before - after) for before, after in zip(base.saved_bytes, other.saved_bytes, strict=True)]
    inner = {}
    for label, row in base.rows.items():
        seen = other.rows.get(label)
        if seen is not None and label[1] != OUTSIDE:
            own = row.other_bytes - sum(base.saved_bytes[i] for i in row.open)
            # What open blocks save is counted by `drops`; what is left is the own need of the stretch.
            inner[label] = float(seen.other_bytes - sum(other.saved_bytes[i] for i in seen.open) - own)
    return drops, inner


def divided(total: float, weights: Sequence[float], least: float) -> list[float]:
    """Returns a total shared out by weights, whose sum counts as `least` at the least."""
    whole = max(sum(weights), least)
    return [max(total, 0.0) * weight / whole for weight in weights]


def cheaper(offload: Treatment | None, recompute: Treatment) -> bool:
    """Whether offloading some block costs less time for each byte than computing it again."""
    assert offload is not None
    blocks = zip(offload.seconds, offload.drops, recompute.seconds, recompute.drops, strict=True)
    return any(gone > 0 and cost / gone < other / max(drop, 1.0) for cost, gone, other, drop in blocks)
