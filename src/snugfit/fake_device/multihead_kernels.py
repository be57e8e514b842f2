"""Multi-head attention and encoder layers of torch in evaluation on a simulated card: one operator each, made of few.

In evaluation `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` call one operator in place of their Python code, and
that makes and frees other tensors than the code does. Here the operators run as CUDA runs them for ordinary tensors.

Source: `ATen/native/transformers/cuda/attention.cu`, native_multi_head_attention_cuda, and `transformer.cpp`,
transformer_encoder_layer_forward, of torch 2.11; equal to what an H100 took.
"""

from __future__ import annotations

from typing import Any

import torch

from snugfit.private_torch import PLAIN_FUNCTIONS

_HAS_FUNCTION_OF_ITS_OWN = torch.overrides.has_torch_function
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def has_torch_function(values: Any) -> bool:
    """As `torch.overrides.has_torch_function`, but for the mode of a recording, which those modules must not notice."""
    if not _HAS_FUNCTION_OF_ITS_OWN(values):
        return False
    kinds = {type(one) for one in values if isinstance(one, torch.Tensor)}
    return any(kind not in _PLAIN and kind.__torch_function__ is not PLAIN_FUNCTIONS for kind in kinds)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Runs `_native_multi_head_attention`; arguments and results as there.

    `query`: shape (batch, length, embed_dim), as `key` and `value`.
    """
    functional = torch.nn.functional
    batch = query.shape[0]
    if query is key and key is value:
        parts = functional.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
        given = zip((query, key, value), weights, biases, strict=True)
        parts = tuple(functional.linear(one, weight, bias) for one, weight, bias in given)
    q, k, v = (one.view(batch, -1, num_head, embed_dim // num_head).transpose(1, 2) for one in parts)
    if need_weights or mask is not None:
        shares = torch.softmax(q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1), -1)
        mixed = shares @ v
    else:
        shares = None
        mixed = functional.scaled_dot_product_attention(q, k, v)
    mixed = mixed.transpose(1, 2).reshape(batch, -1, embed_dim)
    result = functional.linear(mixed, proj_weight, proj_bias)
    if shares is not None and need_weights and average_attn_weights:
        shares = shares.mean(1)
    return result, shares if need_weights else None


def encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Runs `_transformer_encoder_layer_fwd`; arguments and result as there.

    `src`: shape (batch, length, embed_dim).
    """
    functional = torch.nn.functional
    first, second = (norm_weight_1, norm_bias_1, eps), (norm_weight_2, norm_bias_2, eps)

    def norm(x: torch.Tensor, of: tuple[torch.Tensor, torch.Tensor, float]) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), *of)

    x = norm(src, first) if norm_first else src
    x, _ = attention(
        x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, False, mask_type
    )
    x.add_(src)
    if not norm_first:
        x = norm(x, first)
    before = x
    if norm_first:
        x = norm(x, second)
    rows = x.reshape(-1, embed_dim)
    hidden = torch.ops.aten._addmm_activation(ffn_bias_1, rows, ffn_weight_1.t(), use_gelu=use_gelu)
    x = functional.linear(hidden, ffn_weight_2, ffn_bias_2).view(src.shape)
    del hidden
    x.add_(before)
    return x if norm_first else norm(x, second)
