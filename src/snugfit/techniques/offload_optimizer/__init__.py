"""Optimizer state on the host: moments and a copy of the weights live in host memory, and the update runs there.

Takes the whole optimizer state (8 bytes a parameter for Adam in fp32) off the device; weights and gradients stay. Costs
host memory for state, weights and a gradient buffer (16 bytes a parameter), a copy of every gradient to the host and of
every weight back each step, and an update at the host's speed. Copies run on a second stream beside the updates of other
parameters, and, with `step_in_backward`, beside the backward pass.

Wrong when: the host is slow or its memory small; many small steps, since every one moves all parameters. Takes adam, adamw
and sgd; Adafactor's state is too small to be worth it. Fidelity: exact; on CPU bitwise that of torch's own kernel.

Source: Ren et al., ZeRO-Offload, 2021 (arXiv:2101.06840).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from snugfit.techniques.declaration import Choice, Planned, Technique

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.workload import Workload

_TAKES = (None, "adam", "adamw", "sgd")
_ON_HOST = {"offload_optimizer": True}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """Where the update runs."""

    offload_optimizer: bool = False
    """Optimizer state lives in host memory and the update runs there (adam, adamw, sgd)."""


def _contradictions(recipe: Recipe) -> Iterator[str]:
    if not recipe.offload_optimizer:
        return
    if recipe.optimizer == "adafactor":
        yield "offload_optimizer takes adam, adamw or sgd; adafactor's state is so small that moving it saves nothing."
    elif recipe.optimizer not in _TAKES:
        yield (
            f"offload_optimizer takes adam, adamw or sgd, and optimizer is {recipe.optimizer!r}. Leave one of them out, "
            "or take paged-adamw8bit, which moves its own state."
        )


def _misfits(recipe: Recipe, workload: Workload) -> Iterator[str]:
    if recipe.optimizer is None and recipe.offload_optimizer and workload.optimizer == "adafactor":
        yield "offload_optimizer takes adam, adamw or sgd; adafactor's state is so small that moving it saves nothing."


TECHNIQUE = Technique(
    name="offload_optimizer",
    fields=("offload_optimizer",),
    rows=(10,),
    level="exact",
    summary="optimizer state, for an update on the host",
    known_as="cpu-offload offload offloading optimizer-offload optimizer-offloading zero-offload",
    contradictions=_contradictions,
    misfits=_misfits,
    may_change="update",
    per_parameter=True,
    plan=Planned(
        updates=(Choice("offload_optimizer", _ON_HOST),),
        on_host=True,
        least=_ON_HOST,
        moves=(("exact", _ON_HOST),),
        turns=(_ON_HOST,),
        trials=(_ON_HOST,),
    ),
    example=({"microbatch_size": 4}, {"microbatch_size": 4, "offload_optimizer": True}),
)
