"""Kernels of the update: fused (one pass), foreach (one operation at a time), for-loop (one tensor at a time).

Saves temporaries and time. `foreach` holds one intermediate as large as all parameters (Adam's denominator), `for-loop` one
as large as the largest parameter, `fused` none. On CUDA `fused` is also the fastest, and can be masked on the device: a
step whose gradients are not finite is left out without the host waiting, where `foreach` and `for-loop` make it wait for
that flag.

None takes `fused` where torch has it (adam, adamw and sgd on CPU and CUDA), else torch's default. Wrong when bit-for-bit
equality with a run that used another implementation matters. Fidelity: exact, up to the order of operations.

Source: torch.optim's documentation of foreach and fused. Chosen in `training/optimizers.py`.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from snugfit.techniques.declaration import Technique
from snugfit.techniques.planning import Choice, Planning

_TAKES = (None, "adam", "adamw", "sgd", "adafactor")
_NOT_FUSED = "optimizer_impl='fused': torch has no fused kernel for adafactor. Use foreach or for-loop."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """Which kernels update."""

    optimizer_impl: Literal["foreach", "fused", "for-loop"] | None = None
    """Kernels of the optimizer's update: one for all tensors (fused), one an operation (foreach), one a tensor and
    operation (for-loop). None: fused where torch has it for this optimizer, else torch's default."""


TECHNIQUE = Technique(
    name="optimizer_impl",
    fields=("optimizer_impl",),
    rows=(12,),
    level="exact",
    summary="temporaries of the update; time",
    known_as="fused fused-optimizer foreach for-loop fused-adam fused-adamw",
    spellings={("single-tensor", "forloop", "loop"): ("for-loop",), ("multi-tensor", "apex"): ("foreach",)},
    rules={
        _NOT_FUSED: lambda r: r.optimizer_impl == "fused" and r.optimizer == "adafactor",
        "optimizer_impl chooses among torch's kernels, and {recipe.optimizer} has its own. Leave it out.": lambda r: (
            r.optimizer_impl is not None and r.optimizer not in _TAKES
        ),
    },
    misfits={
        _NOT_FUSED: lambda r, w: r.optimizer is None and r.optimizer_impl == "fused" and w.optimizer == "adafactor",
        "optimizer_impl chooses among torch's kernels, and muon has its own. Leave it out.": lambda r, w: (
            r.optimizer is None and r.optimizer_impl is not None and w.optimizer == "muon"
        ),
    },
    in_the_loop="give foreach= or fused= to your optimizer",
    may_change="update",
    planning=Planning(
        leaner=(Choice({"optimizer_impl": "for-loop"}),),
        because="torch's fused kernels are taken where there are any, which are the fastest",
    ),
    example=({"microbatch_size": 4, "optimizer_impl": "foreach"}, {"microbatch_size": 4, "optimizer_impl": "fused"}),
)
