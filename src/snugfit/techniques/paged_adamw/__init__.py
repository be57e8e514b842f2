"""Paged AdamW: both moments in fp32, in memory that the CUDA driver moves to the host when the card is full.

AdamW's own update, by the kernels of bitsandbytes, with its 8 bytes a parameter in unified memory: pages lie on the card
while it has room, leave it when something else needs the room, and come back for the update. Nothing is rounded, so it is
the choice where 8-bit state (`low_bit_optimizer`) is not wanted. Parameters of fewer than 100,000 values keep their state
on the card; the library's rule. Under `bf16-true` and `16-true` the moments stay in fp32, 8 bytes a parameter where torch's
AdamW holds 4, and the update is computed in fp32 and rounded once.

Costs: what does not fit crosses the link twice a step, page by page, and the host waits for the card after each parameter.
How much that is depends on what else the card holds, which torch's allocator does not see: a prediction counts the paged
state as host memory, and the time of a step as if all of it crossed the link every step. That is a bound and no estimate,
so a plan takes this optimizer only where it is pinned. `offload_optimizer` keeps the same state on the host by itself and
updates it there.

Wrong where the model does not fit by more than the state, and on cpu, where nothing is paged: it is the library's AdamW
there, and says so. Weights in float64 are refused, because the kernels compute in fp32. Fidelity: exact up to reordering.
Measured against torch's AdamW, 200 steps in fp32: weights differ by 2.4e-7 at most, five millionths of the way they went.

Source: Dettmers et al., QLoRA, 2023 (arXiv:2305.14314); bitsandbytes 0.50, `optim/optimizer.py` (`get_state_buffer`);
torchtune's page on memory, where it is called PagedAdamW.
"""

from __future__ import annotations

from typing import Literal

from snugfit.techniques.declaration import OptimizerName, Technique

PagedAdamW = Literal["paged-adamw"]

TECHNIQUE = Technique(
    name="paged_adamw",
    fields=("optimizer",),
    rows=(10,),
    level="exact",
    summary="optimizer state, which leaves the card where that is full",
    known_as="paged-adamw-32bit unified-memory",
    spellings={("paged", "paged-adam", "paged-adamw-32bit", "paged-adam32bit"): ("paged-adamw", "paged-adamw8bit")},
    optimizers=(
        OptimizerName(name="paged-adamw", holds="adamw", built_by="snugfit.techniques.paged_adamw.apply:Paged"),
    ),
    in_the_loop="make that optimizer there (bitsandbytes.optim)",
    only_on_cards={"its pages are moved by CUDA's driver": lambda r: r.optimizer == "paged-adamw"},
    example="on cpu nothing is paged, and no card has run this benchmark yet",
)
