"""Loss over a vocabulary without the logits: head and cross entropy in one, by pieces or in one fused kernel.

A language model's logits are tokens x vocabulary and are needed three times over (the head's output, in fp32, their
gradient), often more than all else that a step holds: 2.6 GB for 2048 tokens of Llama 3. `chunked` never has them
(`linear_cross_entropy.py` says how) and gives the same loss and gradients. It costs at most one more product of the head;
with torch's own function, in fp32, none. `fused` takes liger-kernel's kernel on CUDA, which is faster; it computes gradients
before the loss is scaled and adds up the head's gradient in its own dtype, so it is refused under fp16, and rounds under
bf16.

The head is found by structure: what `get_output_embeddings` returns, else the one linear layer with as many outputs as the
largest embedding has words. In training it returns a `DeferredLogits`, which the model slices and flattens like a tensor
until it meets `F.cross_entropy`; so labels shifted inside, ignored labels, label smoothing, soft-capping, tied heads and
biases work as the model means them. In evaluation the same holds where the model computes its loss; where it computes none,
its output has ordinary logits.

Wrong when: the vocabulary is small beside the hidden states (an image classifier), or training needs the logits themselves
(distillation, a z-loss): then it is refused by name. Not with `compile`, which fuses the loss by itself.

Fidelity: exact up to reordering (`fused`: rounding in bf16). Source: Wijmans et al., 2024 (arXiv:2411.09009);
Hsu et al., Liger Kernel, 2024 (arXiv:2410.10989).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from snugfit.techniques.declaration import Technique
from snugfit.techniques.planning import Choice, Planning

_CHUNKED = {"loss_impl": "chunked"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fields:
    """How the loss over a vocabulary is computed."""

    loss_impl: Literal["full", "chunked", "fused"] = "full"
    """Loss over a vocabulary: full holds all logits; chunked computes head and loss by pieces, mostly of the vocabulary,
    and holds the logits of one piece; fused takes one kernel of liger-kernel (CUDA)."""


TECHNIQUE = Technique(
    name="loss_impl",
    fields=("loss_impl",),
    rows=(28,),
    level="exact",
    summary="logits of a large vocabulary, three times over",
    known_as="chunked-loss liger liger-kernel cut-cross-entropy cce linear-cross-entropy fused-loss cross-entropy",
    spellings={("liger", "liger-kernel", "cce", "cut-cross-entropy"): ("fused", "chunked"), ("none",): ("full",)},
    only_on_cards={"its kernels are written for cards": lambda r: r.loss_impl == "fused"},
    hooks="snugfit.techniques.loss_impl.apply:LossImpl",
    may_change="passes",
    planning=Planning(
        part="passes",
        choices=(Choice(_CHUNKED),),
        switchable=True,
        off=lambda _, plan: "" if plan.switchable else "no head over a vocabulary",
    ),
    example=({}, _CHUNKED),
)
