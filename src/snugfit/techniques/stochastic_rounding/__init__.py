"""Stochastic rounding: an update too small for bf16 is not lost but taken with the right probability.

Rounding to nearest drops every update under half a step of the number format, and training in `bf16-true` can silently
stand still. Here each parameter's update is computed in fp32 and rounded up or down at random, in proportion to the
distance, so that the expected weight is the fp32 one; Adam's moments, which decay in steps as small, are rounded the same
way. Memory between steps stays that of `bf16-true`; during the update one parameter at a time, or several small ones, have
fp32 copies of themselves, their gradients and their state. Costs such an update and random numbers, drawn from a generator
of its own, so the model's dropout is not disturbed.

Fidelity: rounding. Wrong when updates are large anyway (high learning rates): it then only adds noise of one bf16 step.
Source: Gupta et al., Deep Learning with Limited Numerical Precision, 2015 (arXiv:1502.02551); Zamirai et al., Revisiting
BFloat16 Training, 2020 (arXiv:2010.06192).
"""

from __future__ import annotations

import dataclasses

from snugfit.techniques.declaration import Technique
from snugfit.techniques.planning import Planning


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """How updates of bf16 weights round."""

    stochastic_rounding: bool = False
    """Updates of bf16 weights are rounded up or down at random, so that small ones are not lost (bf16-true only)."""


TECHNIQUE = Technique(
    name="stochastic_rounding",
    fields=("stochastic_rounding",),
    rows=(2,),
    level="rounding",
    summary="no memory; updates too small for bf16",
    known_as="bf16-stochastic-rounding",
    rules={
        "stochastic_rounding needs precision='bf16-true'; precision is {recipe.precision!r}.": lambda r: (
            r.stochastic_rounding and r.precision != "bf16-true"
        ),
        "stochastic_rounding contradicts offload_optimizer: the update on the host uses torch's kernels, which round "
        "to nearest. Leave one of them out.": lambda r: r.stochastic_rounding and r.offload_optimizer,
    },
    lowers={
        "updates are rounded up or down at random.": ("rounding", lambda r, _: r.stochastic_rounding),
    },
    in_the_loop="only the update of snugfit.prepare rounds so",
    updated_by="snugfit.techniques.stochastic_rounding.apply:RoundedUpdate",
    planning=Planning(because="it only matters for weights that are held in bf16", quiet=True),
    example=({"precision": "bf16-true"}, {"precision": "bf16-true", "stochastic_rounding": True}),
)
