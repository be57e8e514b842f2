"""fp32 accumulation: gradients of microbatches add up in fp32 although the weights are 16 bits.

A bf16 sum of many microbatches loses its small terms (in a sum of 256 equal ones, half of it). Here each microbatch's
gradient is added to an fp32 sum and freed; before the update the sum is rounded once, parameter by parameter. Costs
4 bytes a parameter instead of 2 while gradients add up.

Fidelity: exact for the sum itself. Source: the fp32 main gradients of Megatron-LM (arXiv:1909.08053).
"""

# Done by the hooks of `training/gradients.py`.

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from snugfit.techniques.declaration import Technique
from snugfit.techniques.microbatch import splits
from snugfit.techniques.planning import Changes, Planning

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.workload import Workload

_CUT = {"precision": "bf16-true", "microbatch_size": 4}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """How gradients of microbatches add up."""

    accumulate_dtype: Literal["as-is", "fp32"] = "as-is"
    """Where gradients of microbatches add up: in the dtype of the weights, or in fp32 (for 16-bit weights)."""


def _follows(recipe: Recipe, workload: Workload) -> Changes:
    in_fp32 = splits(recipe, workload) and (recipe.true_precision is not None or workload.half_weights)
    return {"accumulate_dtype": "fp32" if in_fp32 else "as-is"}


TECHNIQUE = Technique(
    name="accumulate_dtype",
    fields=("accumulate_dtype",),
    rows=(5,),
    level="exact",
    summary="no memory; bits of gradients summed in 16 bits",
    known_as="fp32-accumulation gradient-accumulation-dtype",
    spellings={("32", "float32", "f32", "full"): ("fp32",), ("none", "default", "same"): ("as-is",)},
    may_change="update",
    in_the_loop="add gradients up there in the dtype that you want",
    planning=Planning(
        follows=_follows,
        because="it only matters where gradients of microbatches add up in 16-bit weights",
        quiet=True,
    ),
    example=(_CUT, {**_CUT, "accumulate_dtype": "fp32"}),
)
