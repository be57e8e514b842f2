"""FlexAttention on a card: one fused kernel, as `torch.compile` makes of it, in place of the scores that it is written with.

Torch refuses it on devices that it does not know, and a watched script is not compiled. The kernel keeps for backward what
memory-efficient attention keeps: its output, and a number for each query. Scores that a mask leaves out count as work.
Source: `torch/_higher_order_ops/flex_attention.py`, FlexAttentionAutogradOp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from snugfit.attributes import Change
from snugfit.private_torch.flex_attention import with_kernel

FUSED = "FlexAttention was counted as the one kernel that torch.compile makes of it; uncompiled it holds every score"


def fused_flex_attention(answered: Callable[[str], None]) -> list[Change]:
    """Returns the replacements by which FlexAttention runs on the fake card; `answered` is told of its use."""

    def kernel(
        query: Tensor, key: Tensor, value: Tensor, score_mod: Any, mask: Any, scale: float, *_: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        answered(FUSED)
        out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, None, True, 0.0, False, scale=scale
        )
        lse = lse[..., : query.shape[-2]]
        return out, lse, lse

    return with_kernel(kernel)
