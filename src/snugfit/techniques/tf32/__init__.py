"""TF32: matmuls and convolutions of fp32 tensors round their inputs to 10 bits of mantissa on CUDA's tensor cores.

Saves no memory; it makes fp32 training several times faster on Ampere and newer cards, which buys time for techniques that
save memory. Wrong when the model needs all of fp32's digits (some solvers and losses do). Fidelity: rounding. Has no
effect outside CUDA, and says so.

Source: torch notes, "TensorFloat-32 (TF32) on Ampere (and later) devices".
"""

from __future__ import annotations

from snugfit.techniques.declaration import Technique
from snugfit.techniques.planning import Choice, Planning

_TF32 = {"precision": "tf32"}

TECHNIQUE = Technique(
    name="tf32",
    fields=("precision",),
    rows=(3,),
    level="rounding",
    summary="no memory; time of fp32 matmuls on CUDA",
    known_as="tensorfloat32",
    spellings={("tensorfloat32", "tensorfloat-32", "high"): ("tf32",)},
    meanings={"tf32": "matmuls of fp32 round to 10 bits on CUDA"},
    hooks="snugfit.techniques.tf32.apply:TF32",
    planning=Planning(
        part="passes",
        choices=(Choice(_TF32, "rounding", lambda here: here.bf16 and not here.on_cpu),),
        leaner=(),
    ),
    example="it needs a CUDA card of capability 8.0 or more, and none has run this benchmark yet",
)
