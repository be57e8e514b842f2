"""True low precision: weights, gradients, activations and optimizer state in 16 bits.

Halves everything, and is the largest single saving of the guides. `bf16-true` keeps fp32's range with 8 bits of mantissa:
an update smaller than about 1/256 of a weight is lost (100 updates of 1e-4 on a weight of 0.05 leave 0.05005), which
`stochastic_rounding` cures on average; `prepare` watches the first updates and warns once when most of them are lost.
`16-true` has a finer mantissa but overflows at 65504: it warns at the start, and a step with a gradient that is not finite
is not taken and stops the run with the cause named.

Wrong when: the model is trained from scratch at small learning rates without stochastic rounding; many microbatches add up
in 16 bits (set `accumulate_dtype=fp32`). Fidelity: rounding. Floating tensors of a batch are cast to the weights' dtype;
integer ones, and float64 models' buffers of integers, are left alone.

Source: Lightning Fabric's true-half precision; Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, 2019
(arXiv:1905.12322).
"""

from __future__ import annotations

from snugfit.techniques.declaration import Technique
from snugfit.techniques.planning import Choice, Planning

_ROUNDED = {"precision": "bf16-true", "stochastic_rounding": True}
"""Plain rounding loses small updates of 16-bit weights, so a plan never holds them without."""

TECHNIQUE = Technique(
    name="true_precision",
    fields=("precision",),
    rows=(2,),
    level="rounding",
    summary="half of everything",
    known_as="bf16 bfloat16 fp16 float16 half-precision pure-bf16",
    spellings={
        ("pure-bf16", "bf16-full", "full-bf16", "bfloat16-true"): ("bf16-true",),
        ("pure-fp16", "fp16-true", "full-fp16", "float16-true"): ("16-true",),
    },
    meanings={
        "16-true": "weights, gradients and optimizer state in fp16",
        "bf16-true": "weights, gradients and optimizer state in bf16",
    },
    hooks="snugfit.techniques.true_precision.apply:TruePrecision",
    planning=Planning(part="passes", choices=(Choice(_ROUNDED, "rounding", lambda here: here.bf16),)),
    example=({}, {"precision": "bf16-true"}),
)
