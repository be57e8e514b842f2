"""Ways to train on several GPUs that snugfit does not run now, the tools that do, and when that is worth it.

Named where it is the natural next step only: where nothing fits although everything is shared out, where one sample's
activations are most of what a GPU holds, and where a mixture's experts are collected on every GPU.
"""

from __future__ import annotations

import dataclasses

from snugfit.simulator.prediction import Estimate

_MOST = 0.5
"""Part of the peak from which on activations are most of the memory."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Elsewhere:
    """A way to use several GPUs that other tools run."""

    name: str
    """What it is called."""
    tools: tuple[str, ...]
    """Tools that run it."""
    worth_it: str
    """What it does, and when it is worth it."""

    def __str__(self) -> str:
        return f"{self.name} is not run by snugfit now, but by {' or '.join(self.tools)}: {self.worth_it}."


PIPELINE = Elsewhere(
    name="pipeline parallelism",
    tools=("torchtitan", "Megatron-Core"),
    worth_it=(
        "each GPU holds some of the layers and hands activations on; worth it where the shares do not fit however they are "
        "cut, or where links between machines are too slow for collecting weights"
    ),
)
CONTEXT = Elsewhere(
    name="context parallelism",
    tools=("torchtitan", "Megatron-Core", "DeepSpeed (Ulysses)"),
    worth_it=(
        "each GPU has a part of every sequence; worth it where one sample's activations are most of the memory, as they are "
        "here: more GPUs that share the batch do not make them less"
    ),
)
EXPERT = Elsewhere(
    name="expert parallelism",
    tools=("Megatron-Core", "DeepSpeed (MoE)", "torchtitan"),
    worth_it=(
        "each GPU keeps some of the experts and tokens travel to them; worth it for a mixture, whose experts are all "
        "collected on every GPU here although a token goes through few"
    ),
)


def ways_elsewhere(estimate: Estimate, *, samples: int | None, fits: bool) -> tuple[Elsewhere, ...]:
    """Returns the natural next step for training on several GPUs; nothing in most cases.

    `estimate`: what one of them needs, by the plan, or by the recipe that needs the least where nothing fits.
    """
    if not estimate.ranks:
        return ()
    passing = estimate.anatomy_bytes["activations"] + estimate.anatomy_bytes["temporaries"]
    long = samples == 1 and bool(estimate.attention_kernels) and passing > _MOST * estimate.peak_allocated_bytes
    found = {PIPELINE: not fits, CONTEXT: long, EXPERT: bool(estimate.experts_bytes)}
    return tuple(way for way, natural in found.items() if natural)
