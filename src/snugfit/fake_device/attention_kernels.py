"""Scaled dot product attention on the fake accelerator: the kernel that CUDA would take, with what it really saves.

torch chooses in this order: flash attention (16 bits, no mask, head size up to 256, compute capability 8.0 or newer), then
memory-efficient attention (also float32 and masks; capability 5.0 or newer), then plain matrix products. cuDNN attention,
which torch takes on some newer cards, saves the same tensors as flash. Each of the first two runs as one operator whose
outputs (result, logsumexp, random state) are those that autograd saves on CUDA.

Source: `ATen/native/transformers/attention.cpp` and `cuda/sdp_utils.cpp` of torch.
"""

from __future__ import annotations

import torch

from snugfit.fake_device.accelerator import backend
from snugfit.private_torch import dispatcher

_FLASH_MIN_CAPABILITY = (8, 0)
_FLASH_HEAD_ALIGNMENT = 8
_MASK_ALIGNMENT = 8
_FLASH_MAX_HEAD = 256
_HALF = (torch.float16, torch.bfloat16)


def choose(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    enable_gqa: bool,
    capability: tuple[int, int],
) -> str:
    """Returns the kernel that CUDA takes on a card of this compute capability.

    `query`: shape (batch, heads, queries, head size).
    `key`: shape (batch, heads, keys, head size).
    `value`: shape (batch, heads, keys, head size of values).
    `flash`, `efficient` or `math`.
    """
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4 or 0 in (query.shape[2], key.shape[2]):
        return "math"
    # T5 turns its table of position biases: such a mask is read by plain products only.
    given = (query, key, value, *(() if mask is None else (mask,)))
    if any(one.stride(-1) != 1 and one.shape[-1] != 1 for one in given):
        return "math"
    if key.shape[0] != query.shape[0] or (key.shape[1] != query.shape[1] and not enable_gqa):
        return "math"
    if (
        torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
        and mask is None
        and query.dtype in _HALF
        and query.shape[-1] == key.shape[-1] == value.shape[-1] <= _FLASH_MAX_HEAD
        and capability >= _FLASH_MIN_CAPABILITY
    ):
        return "flash"
    if (
        torch.backends.cuda.mem_efficient_sdp_enabled()  # type: ignore[no-untyped-call]
        and query.dtype in (*_HALF, torch.float32)
        and not (query.dtype == torch.bfloat16 and capability < (8, 0))
        and key.shape[1] == query.shape[1]
    ):
        return "efficient"
    return "math"


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Runs attention with the operators that CUDA would run; arguments as `scaled_dot_product_attention`.

    `attn_mask`: boolean or added to the scores.
    `scale`: scale of the scores; None: one over the root of the head size.
    Returns shape (batch, heads, queries, head size of values).
    """
    aten = torch.ops.aten
    kernel = backend.of_card(lambda capability: choose(query, key, value, attn_mask, enable_gqa, capability))
    if kernel == "flash":
        size = query.shape[-1]
        extra = -size % _FLASH_HEAD_ALIGNMENT
        scale = size**-0.5 if scale is None else scale
        if extra:
            # Heads are padded to a multiple, which makes copies of all three.
            query, key, value = (torch.nn.functional.pad(part, (0, extra)) for part in (query, key, value))
        out: torch.Tensor = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
        return out[..., :size] if extra else out
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        zero = torch.zeros((), dtype=query.dtype, device=query.device)
        attn_mask = torch.where(attn_mask.logical_not(), float("-inf"), zero)
    if kernel == "efficient":
        if attn_mask is not None:
            keys = attn_mask.shape[-1]
            extra = -keys % _MASK_ALIGNMENT
            if extra:
                # The kernel loads aligned rows of the mask: it is copied into longer ones, of which a view has its
                # shape.
                attn_mask = torch.nn.functional.pad(attn_mask, (0, extra))[..., :keys]
            attn_mask = attn_mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        needs_gradient = query.requires_grad or key.requires_grad or value.requires_grad
        out = aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, needs_gradient, dropout_p, is_causal, scale=scale
        )[0]
        return out
    out = aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]
    return out


def register() -> None:
    """Registers attention for the fake accelerator; call it once in a process."""
    dispatcher.claim_kernel("aten::scaled_dot_product_attention", attention, "AutogradPrivateUse1")
