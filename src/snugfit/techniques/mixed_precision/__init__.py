"""Mixed precision: compute in 16 bits under autocast, keep weights, gradients and state in fp32.

Saves about half of the activations that matmuls and convolutions save, and runs them on the fast units of a GPU. Adds a
16-bit copy of each weight while a forward pass runs (autocast's cache), so a model with few activations can need *more*
memory than plain fp32. `16-mixed` scales the loss so that small gradients survive fp16, skips updates whose gradients
overflow, and lowers the scale; `bf16-mixed` has fp32's range and needs none of that.

Wrong when: the model already holds 16-bit weights (use true precision); on CPUs without 16-bit matmul units it is slower
than fp32. Fidelity: rounding. Evaluation runs under autocast too, as the deployed model would.

Source: Micikevicius et al., Mixed Precision Training, 2018 (arXiv:1710.03740); torch.amp.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from snugfit.techniques.declaration import Technique
from snugfit.techniques.planning import Choice, Planning

Precision = Literal["fp32", "tf32", "16-mixed", "bf16-mixed", "16-true", "bf16-true"]
_BF16, _FP16 = {"precision": "bf16-mixed"}, {"precision": "16-mixed"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """The number format, which `true_precision` and `tf32` share."""

    precision: Precision = "fp32"
    """Number format: fp32 casts nothing (float64 stays float64); tf32 lets matmuls of fp32 round to 10 bits on CUDA;
    16-mixed and bf16-mixed compute under autocast (16-mixed scales the loss); 16-true and bf16-true hold weights,
    gradients and state in 16 bits."""

    @property
    def true_precision(self) -> Literal["16", "bf16"] | None:
        """The 16-bit format weights are held in, or None when their dtype is left alone."""
        return {"16-true": "16", "bf16-true": "bf16"}.get(self.precision)  # type: ignore[return-value]


TECHNIQUE = Technique(
    name="mixed_precision",
    fields=("precision",),
    rows=(1,),
    level="rounding",
    summary="half of the activations; fast matmuls",
    known_as="amp autocast bf16 bfloat16 fp16 float16 half-precision gradscaler loss-scaling",
    spellings={
        ("bf16", "bfloat16", "brain-float"): ("bf16-mixed", "bf16-true"),
        ("16", "fp16", "float16", "f16", "half"): ("16-mixed", "16-true"),
        ("amp", "autocast", "mixed", "mixed-precision"): ("bf16-mixed", "16-mixed"),
        ("bf16-amp", "amp-bf16", "bfloat16-mixed", "mixed-bf16", "mixed-bfloat16"): ("bf16-mixed",),
        ("fp16-mixed", "fp16-amp", "amp-fp16", "float16-mixed", "mixed-fp16", "mixed-float16"): ("16-mixed",),
        ("32", "float32", "f32", "full", "single", "32-true", "fp32-true", "highest"): ("fp32",),
        ("64", "fp64", "float64", "double", "64-true"): ("fp32",),
    },
    meanings={
        "fp32": "casts nothing: float64 stays float64",
        "16-mixed": "fp16 autocast with loss scaling; weights and optimizer state stay fp32",
        "bf16-mixed": "bf16 autocast; weights and optimizer state stay fp32",
    },
    lowers={
        "{recipe.precision} computes with fewer bits than fp32.": ("rounding", lambda r, _: r.precision != "fp32"),
    },
    hooks="snugfit.techniques.mixed_precision.apply:MixedPrecision",
    planning=Planning(
        part="passes",
        choices=(
            Choice(_BF16, "rounding", lambda here: here.bf16),
            Choice(_FP16, "rounding", lambda here: not here.bf16),
        ),
    ),
    example=({}, _BF16),
)
