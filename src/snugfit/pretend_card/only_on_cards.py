"""Operators that only cards have, computed by their definition: fused attention, and recurrent layers.

Their random state on a card is a seed and an offset; a pretend card keeps the seed of the mask there, so backward draws the
same mask again.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from snugfit.pretend_card import recurrent

_aten = torch.ops.aten


def _probabilities(
    query: Tensor, key: Tensor, bias: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Returns the weights of attention, and the log of their sum before normalisation."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    if bias is not None:
        scores = scores + bias
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    total = scores.logsumexp(-1)
    return (scores - total.unsqueeze(-1)).exp().nan_to_num(0.0), total


def _kept(weights: Tensor, dropout: float, seed: int) -> Tensor | float:
    if not dropout:
        return 1.0
    draw = torch.Generator().manual_seed(seed)
    return (torch.rand(weights.shape, generator=draw) >= dropout).to(weights.dtype) / (1 - dropout)


def _wide(*tensors: Tensor) -> list[Tensor]:
    """At least float32, in which fused kernels add up."""
    return [tensor.double() if tensor.dtype == torch.float64 else tensor.float() for tensor in tensors]


def _shared(query: Tensor, *others: Tensor) -> list[Tensor]:
    """Heads of keys and values, repeated for the queries that share them."""
    return [one.repeat_interleave(query.shape[1] // one.shape[1], 1) for one in others]


def _forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, int]:
    seed = int(torch.randint(2**62, ()))
    wide_query, wide_key, wide_value = _wide(query, *_shared(query, key, value))
    weights, total = _probabilities(wide_query, wide_key, bias, is_causal, scale)
    return (weights * _kept(weights, dropout, seed)) @ wide_value, total, seed


def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout: float,
    is_causal: bool,
    seed: int,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    heads = key.shape[1]
    wide_grad, wide_query, wide_key, wide_value = _wide(grad, query, *_shared(query, key, value))
    weights, _ = _probabilities(wide_query, wide_key, bias, is_causal, scale)
    kept = _kept(weights, dropout, seed)
    grad_value = (weights * kept).transpose(-2, -1) @ wide_grad
    grad_weights = (wide_grad @ wide_value.transpose(-2, -1)) * kept
    grad_scores = weights * (grad_weights - (grad_weights * weights).sum(-1, keepdim=True))
    grad_query = grad_scores @ wide_key * scale
    grad_key = grad_scores.transpose(-2, -1) @ wide_query * scale

    def summed(tensor: Tensor) -> Tensor:
        return tensor.reshape(tensor.shape[0], heads, -1, *tensor.shape[2:]).sum(2)

    return grad_query, summed(grad_key), summed(grad_value), grad_scores


def _flash(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *_: Any, **named: Any
) -> tuple[Any, ...]:
    out, total, seed = _forward(query, key, value, None, dropout_p, is_causal, named.get("scale"))
    return out, total, None, None, None, None, torch.tensor([seed, 0]), None, None


def _flash_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, total: Tensor, cum_q: Any, cum_k: Any,
    max_q: Any, max_k: Any, dropout_p: float, is_causal: bool, state: Tensor, *_: Any, **named: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    seed = int(state.flatten()[0]) if state.numel() else 0
    return _backward(grad, query, key, value, None, dropout_p, is_causal, seed, named.get("scale"))[:3]


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, compute_log_sumexp: bool, dropout_p: float = 0.0,
    is_causal: bool = False, **named: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    out, total, seed = _forward(query, key, value, bias, dropout_p, is_causal, named.get("scale"))
    return out, torch.nn.functional.pad(total, (0, -total.shape[-1] % 32)), torch.tensor(seed), torch.tensor(0)


def _efficient_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, out: Tensor, total: Tensor,
    seed: Tensor, offset: Tensor, dropout_p: float, wanted: list[bool], is_causal: bool = False, **named: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    number = int(seed) if seed.numel() == 1 else 0
    return _backward(grad, query, key, value, bias, dropout_p, is_causal, number, named.get("scale"))


def _histogram(values: Tensor, *bins: Any) -> Tensor:
    """Counts whole numbers, as a card does and the CPU does not; transformers counts experts' tokens so."""
    return torch.histc(values.double(), *bins).to(values.dtype)


KERNELS: dict[Any, Any] = {
    _aten.histc.default: _histogram,
    _aten._scaled_dot_product_flash_attention.default: _flash,
    _aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    _aten._scaled_dot_product_efficient_attention.default: _efficient,
    _aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    _aten._cudnn_rnn.default: recurrent.forward,
    _aten._cudnn_rnn_backward.default: recurrent.backward,
}
"""Operator -> its definition on CPU tensors."""
