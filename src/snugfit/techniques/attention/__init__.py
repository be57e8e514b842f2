"""Attention kernels: torch's fused scaled-dot-product attention in place of one that holds every score.

Eager attention saves the score matrix and its softmax: heads x queries x keys a sample, which grows with the square of the
sequence. The fused kernels (flash, memory-efficient) never hold it and are faster. `sdpa` switches a model's own eager
path to torch's function, which takes the best kernel that can run (on CPU with attention dropout that is the one that
builds the matrix); `flash` allows only the flash kernel, and stops with the reason where that cannot run; `eager` holds
everything, as a reference or for a mask the kernels refuse.

Models are switched by what they offer: transformers' `set_attn_implementation`, timm's `fused_attn` attribute; models that
call torch's function are steered by `torch.nn.attention.sdpa_kernel`. A model whose attention is its own code and cannot be
switched (BigBird's blocks, a family that transformers has no fused form of) is refused. `nn.MultiheadAttention` that is
asked for its weights builds the matrix whatever is said here. Where there is no attention the field has no effect, and
says so. When the model is prepared again, it goes back to what it was before.

Fidelity: exact up to reordering. Source: Dao et al., FlashAttention, 2022 (arXiv:2205.14135); torch SDPA.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from snugfit.techniques.declaration import Technique
from snugfit.techniques.planning import Choice, Planning

_SDPA = {"attention": "sdpa"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """Which kernels attention takes."""

    attention: Literal["auto", "eager", "sdpa", "flash"] = "auto"
    """Attention kernels: auto leaves the model's choice; eager holds the full score matrix; sdpa takes torch's fused
    kernels; flash allows only the flash kernel and stops where it cannot run."""


TECHNIQUE = Technique(
    name="attention",
    fields=("attention",),
    rows=(21,),
    level="exact",
    summary="attention scores, which grow with the sequence squared",
    known_as="flash-attention flash-attention-2 flash-attn flash fa2 sdpa xformers memory-efficient-attention",
    spellings={
        ("flash-attention", "flash-attention-2", "flash-attention-3", "flash-attn", "fa2", "fa3"): ("flash",),
        ("efficient", "mem-efficient", "memory-efficient", "xformers", "cudnn", "math"): ("sdpa",),
        ("manual", "naive", "vanilla"): ("eager",),
    },
    hooks="snugfit.techniques.attention.apply:Attention",
    may_change="passes",
    planning=Planning(
        part="switch",
        switchable=True,
        choices=(Choice(_SDPA),),
        off=lambda _, plan: (
            "" if plan.switchable else "the model has no attention that holds every score and could be switched"
        ),
    ),
    example=({"attention": "eager"}, _SDPA),
)
