"""Low-bit optimizer state: AdamW's two moments in 8 or 4 bits, with a scale for each block of values.

AdamW's moments take 8 bytes a parameter in fp32. `adamw8bit` holds them in 2.03 (8-bit dynamic codes, blocks of 256),
`adamwfp8` in 2.03 (float8 e4m3, blocks of 256), `adamw4bit` in 1.06 (4-bit codes, blocks of 128). `paged-adamw8bit` is
`adamw8bit` in memory that the CUDA driver moves to the host when the card is full. An update unpacks a block, computes in
fp32 and packs it again, so the algorithm is AdamW's and every step rounds the moments: fidelity rounding.

What stays in full precision: parameters of fewer than 4096 values, which are too small to gain anything; with 4 bits and
fp8, those that are no whole number of blocks; and every embedding, a head tied to one included, because rows that are seen
rarely get large updates (the rule of bitsandbytes, kept here for all of them).

Which library: `adamw8bit` and `paged-adamw8bit` run bitsandbytes, whose one kernel a parameter takes no memory beside the
state on CUDA, needs no compiler, and is eager on CPU. `adamw4bit` and `adamwfp8` run the number formats and the update of
torchao. It would compile the update for every shape (4 to 25 seconds each) and, uncompiled, take some fifty bytes for each
value of the largest parameter; here the update goes over slices of a million values, uncompiled on CPU and compiled once on
CUDA, so its temporaries stay small in both cases. State is plain tensors, saved and loaded bit for bit.

Costs: bitsandbytes lets the host wait for the GPU after each parameter. Wrong when updates are tiny and must not be
rounded; useless for a model of small tensors, where nothing is quantised. On cpu nothing is paged: `paged-adamw8bit` is
`adamw8bit` there, and says so. With `stochastic_rounding` weights are rounded at random, the state stays in its own format.

Source: Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2021 (arXiv:2110.02861); Li et al., Memory Efficient
Optimizers with 4-bit States, 2023 (arXiv:2309.01507); torchao/optim/README.md; Dettmers et al., QLoRA, 2023, for paging
(arXiv:2305.14314).
"""

from __future__ import annotations

from typing import Literal, get_args

from snugfit.techniques.declaration import OptimizerName, Technique
from snugfit.techniques.planning import Choice, Planning

LowBit = Literal["adamw8bit", "adamw4bit", "adamwfp8", "paged-adamw8bit"]
_NAMES: tuple[LowBit, ...] = get_args(LowBit)
_CHOICES = tuple(
    Choice({"optimizer": name}, "rounding", lambda here: here.workload.optimizer == "adamw") for name in _NAMES
)
_8BIT, _4BIT = _CHOICES[:2]

TECHNIQUE = Technique(
    name="low_bit_optimizer",
    fields=("optimizer",),
    rows=(9, 10),
    level="rounding",
    summary="optimizer state: three quarters of AdamW's in 8 bits, seven eighths in 4",
    known_as=(
        "8bit 8-bit 8bit-adam 8bit-adamw 8-bit-adam adam8bit adamw8bit 4bit-adam adamw4bit adamwfp8 "
        "fp8-adam paged paged-adam paged-adamw8bit paged-optimizer bitsandbytes bnb torchao"
    ),
    spellings={
        ("8bit", "8bit-adam", "8bit-adamw", "adam8bit", "adamw-bnb-8bit", "adamw-8bits", "bnb-adamw8bit"): (
            "adamw8bit",
        ),
        ("4bit", "4bit-adam", "4bit-adamw", "adam4bit", "adamw-torch-4bit"): ("adamw4bit",),
        ("fp8", "adamfp8", "adamw-fp8", "adamw-torch-fp8"): ("adamwfp8",),
        ("paged-adam8bit", "paged-adamw-8bit"): ("paged-adamw8bit",),
    },
    optimizers=tuple(
        OptimizerName(
            name=name,
            holds="adamw",
            level="rounding",
            reason=f"{name} holds the state of {{}} in fewer bits.",
            built_by="snugfit.techniques.low_bit_optimizer.apply:LowBitAdamW",
        )
        for name in _NAMES
    ),
    in_the_loop="make that optimizer there (torchao.optim or bitsandbytes.optim)",
    only_on_cards={
        "it is compiled on a card, and the compiler knows no card that is pretended": lambda r: (
            r.optimizer in ("adamw4bit", "adamwfp8")
        ),
        "its pages are moved by CUDA's driver": lambda r: r.optimizer == "paged-adamw8bit",
    },
    planning=Planning(part="update", choices=_CHOICES, leaner=(_4BIT, _8BIT)),
    example=({"microbatch_size": 4}, {"microbatch_size": 4, **_8BIT.changes}),
)
