"""Head and cross entropy in one function that never holds all logits.

Logits are tokens x vocabulary, in 16 bits, once more in fp32, and once more as their gradient: 2.6 GB for 2048 tokens and
128256 words. Here the vocabulary is cut into pieces. Forward takes one piece of the head after the other and keeps a running
log-sum-exp and the score of the label, a number a token each. Backward computes each piece again, turns it in place into its
gradient, and multiplies it with the head's piece and with the hidden states at once.

Pieces of the vocabulary, not of tokens: each row of the head's gradient is then one product over all tokens, as in plain
training, with nothing to add up in 16 bits, and under autocast only a piece of the head is cast at a time. What adds up over
the pieces is the gradient of the hidden states, in fp32. Computing the pieces again costs one more product of the head (a
third of its own work); it is needed where the loss is scaled, since a gradient taken before the scale is known underflows in
fp16.

torch's own function (`F.linear_cross_entropy` with options, torch 2.13 or newer) cuts tokens and takes all gradients in
forward, so it computes nothing twice. It is taken where it gives the same: fp32 and fp64 without autocast, label smoothing
or soft-capping. Its sums over pieces would round in 16 bits, and its gradients underflow in fp16.

Source: Wijmans et al., Cut Your Losses in Large-Vocabulary Language Models, 2024 (arXiv:2411.09009); the softmax that runs
along: Milakov and Gimelshein, 2018 (arXiv:1805.02867); `torch/nn/modules/linear_cross_entropy.py`.
"""

from __future__ import annotations

import dataclasses
import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MOST_PIECES = 32
"""More pieces would save little beside the hidden states and cost launches."""
_ALIGNMENT = 64
"""Pieces are multiples of this many words, as matrix units like them."""
_EXACT_SUMS = (torch.float32, torch.float64)
"""Dtypes whose sums over pieces are as good as one product."""


class LogitStep(NamedTuple):
    """One element-wise operation between the head and the loss."""

    kind: Literal["multiply", "divide", "tanh", "cast"]
    """What is done."""
    value: Any = None
    """The factor, or the dtype of a cast."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How hidden states become a loss."""

    steps: tuple[LogitStep, ...] = ()
    """What happens to the logits between head and loss, in order."""
    compute_dtype: torch.dtype
    """Dtype of the head's product: that of the hidden states, or autocast's."""
    ignore_index: int = -100
    """Label that is left out."""
    label_smoothing: float = 0.0
    """Share of the target that is spread over all words."""

    @property
    def logits_dtype(self) -> torch.dtype:
        """Dtype of the logits that reach the loss."""
        return next((value for kind, value in reversed(self.steps) if kind == "cast"), self.compute_dtype)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    *,
    reduction: str,
    settings: Settings,
) -> Tensor:
    """Returns the cross entropy of a linear head without ever holding all logits.

    `hidden`: hidden states, `[N, F]`.
    `weight`: the head, `[V, F]`; tied to an embedding or not, frozen or not.
    `bias`: of the head, `[V]`, or None.
    `labels`: int64 `[N]`, from 0 to V - 1, or `ignore_index`. Any other makes the loss nan.
    `reduction`: mean (over the labels that count), sum or none.
    It is 0-dim, or `[N]` for none; in fp32 at least, also where plain cross entropy would round to 16 bits.
    """
    counts = (labels != settings.ignore_index).sum() if reduction == "mean" else None
    if torchs_own_is_right(hidden, weight, bias, settings) and reduction != "none":
        pieces = piece_count(weight)
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=max(1, math.ceil(len(hidden) / pieces)))
        total = F.linear_cross_entropy(
            hidden,
            weight,
            labels,
            linear_bias=bias,
            reduction="sum",
            ignore_index=settings.ignore_index,
            options=options,
        )
        if counts is None:
            return total
        # Of no label at all the mean is nan, and its gradient zero, as plain cross entropy has it.
        return torch.where(counts > 0, total / counts.clamp(min=1), torch.nan)
    losses: Tensor = _ByPieces.apply(hidden, weight, bias, labels, settings)
    if reduction == "none":
        return losses
    return losses.sum() if counts is None else losses.sum() / counts


def torchs_own_is_right(hidden: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings) -> bool:
    """Returns whether torch's own `F.linear_cross_entropy` computes the same, as exactly."""
    return (
        hasattr(nn, "LinearCrossEntropyOptions")
        and settings.compute_dtype in _EXACT_SUMS
        and hidden.dtype == weight.dtype == settings.compute_dtype
        and (bias is None or bias.dtype == weight.dtype)
        and not settings.steps
        and not settings.label_smoothing
    )


def piece_count(weight: Tensor) -> int:
    """Returns into how many pieces the vocabulary is cut, so that one piece is about as large as the hidden states."""
    words, width = weight.shape
    return max(1, min(MOST_PIECES, math.ceil(words / width)))


def _pieces(weight: Tensor) -> list[tuple[int, int]]:
    words = weight.shape[0]
    size = math.ceil(words / piece_count(weight) / _ALIGNMENT) * _ALIGNMENT
    return [(start, min(start + size, words)) for start in range(0, words, size)]


class _ByPieces(torch.autograd.Function):
    """From hidden states to a loss a token, and back, one piece of the vocabulary at a time."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, settings: Settings
    ) -> Tensor:
        with _no_autocast(hidden):
            states = hidden.to(settings.compute_dtype)
            wide = settings.logits_dtype if settings.logits_dtype in _EXACT_SUMS else torch.float32
            top = torch.full(labels.shape, float("-inf"), dtype=wide, device=labels.device)
            shifted_sum, score, every_score = torch.zeros_like(top), torch.zeros_like(top), torch.zeros_like(top)
            found = torch.zeros_like(labels, dtype=torch.bool)
            for start, stop in _pieces(weight):
                logits = _widened(after_steps(_logits(states, weight, bias, start, stop, settings), settings.steps))
                column, inside = _columns(labels, start, stop)
                found |= inside
                score += torch.where(inside, logits.gather(1, column)[:, 0], 0)
                if settings.label_smoothing:
                    every_score += logits.sum(1)
                # The log-sum-exp so far is relative to the largest logit so far; a larger one rescales what was summed.
                new_top = torch.maximum(top, logits.amax(1))
                shifted_sum *= (top - new_top).exp_()
                shifted_sum += logits.sub_(new_top[:, None]).exp_().sum(1)
                top = new_top
                del logits
            log_sum = top + shifted_sum.log_()
            smoothing = settings.label_smoothing
            losses = log_sum - (1 - smoothing) * score
            if smoothing:
                losses -= smoothing / weight.shape[0] * every_score
            ignored = labels == settings.ignore_index
            losses.masked_fill_(~found, float("nan")).masked_fill_(ignored, 0)
        ctx.save_for_backward(hidden, weight, bias, labels, log_sum)
        ctx.settings = settings
        return losses

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels, log_sum = ctx.saved_tensors
        settings: Settings = ctx.settings
        for_hidden, for_weight, for_bias = ctx.needs_input_grad[:3]
        grad_hidden = grad_weight = grad_bias = None
        with _no_autocast(hidden):
            states = hidden.to(settings.compute_dtype)
            scale = grad.to(log_sum.dtype).masked_fill(labels == settings.ignore_index, 0)[:, None]
            if for_weight:
                grad_weight = torch.empty_like(weight)
            if for_bias:
                grad_bias = torch.empty_like(bias)
            for start, stop in _pieces(weight):
                logits = _logits(states, weight, bias, start, stop, settings)
                slope, kept = _loss_slope(logits, labels, log_sum, (start, stop), weight.shape[0], settings)
                del logits
                slope = _before(slope.mul_(scale), settings, kept)
                if for_hidden:
                    grad_hidden = _add_product(grad_hidden, slope, _cast_rows(weight, start, stop, settings))
                if grad_weight is not None:
                    grad_weight[start:stop] = slope.t() @ states
                if grad_bias is not None:
                    grad_bias[start:stop] = slope.sum(0)
                del slope, kept
        return None if grad_hidden is None else grad_hidden.to(hidden.dtype), grad_weight, grad_bias, None, None


def _logits(states: Tensor, weight: Tensor, bias: Tensor | None, start: int, stop: int, settings: Settings) -> Tensor:
    """A piece of the logits, `[N, stop - start]`, in the dtype of the head's product."""
    part = None if bias is None else bias[start:stop].to(settings.compute_dtype)
    return F.linear(states, _cast_rows(weight, start, stop, settings), part)


def _cast_rows(weight: Tensor, start: int, stop: int, settings: Settings) -> Tensor:
    return weight[start:stop].to(settings.compute_dtype)


def after_steps(logits: Tensor, steps: tuple[LogitStep, ...], kept: list[Tensor] | None = None) -> Tensor:
    """Returns logits after the steps between head and loss, in place; `kept` takes what their derivatives need."""
    for kind, value in steps:
        fresh = not kept or logits is not kept[-1]
        if kind == "cast":
            logits = logits.to(value)
        elif kind == "tanh":
            logits = logits.tanh_() if fresh else logits.tanh()
            if kept is not None:
                kept.append(logits)
        elif kind == "multiply":
            logits = logits.mul_(value) if fresh else logits * value
        else:
            logits = logits.div_(value) if fresh else logits / value
    return logits


def _loss_slope(
    logits: Tensor, labels: Tensor, log_sum: Tensor, piece: tuple[int, int], words: int, settings: Settings
) -> tuple[Tensor, list[Tensor]]:
    """The derivative of each token's loss by its final logits, made in place, and what the steps' derivatives need."""
    kept: list[Tensor] = []
    wide = _widened(after_steps(logits, settings.steps, kept))
    # softmax minus the target, made in the memory of the logits, unless a derivative of tanh still needs those.
    slope = wide - log_sum[:, None] if kept and wide is kept[-1] else wide.sub_(log_sum[:, None])
    slope.exp_()
    if settings.label_smoothing:
        slope.sub_(settings.label_smoothing / words)
    column, inside = _columns(labels, *piece)
    # Adds (smoothing - 1) at the label; outside of the piece it adds zero to column 0.
    slope.scatter_add_(1, column, inside[:, None].to(slope.dtype).mul_(settings.label_smoothing - 1))
    return slope, kept


def _before(slope: Tensor, settings: Settings, kept: list[Tensor]) -> Tensor:
    """From the derivative by the final logits to that by the head's output, in the dtype of the head's product."""
    dtypes = [settings.compute_dtype, *(value for kind, value in settings.steps if kind == "cast")]
    slope = slope.to(dtypes.pop())
    for kind, value in reversed(settings.steps):
        if kind == "cast":
            slope = slope.to(dtypes.pop())
        elif kind == "tanh":
            slope.mul_(1 - kept.pop().square())
        else:
            slope = slope.mul_(value) if kind == "multiply" else slope.div_(value)
    return slope


def _add_product(total: Tensor | None, slope: Tensor, rows: Tensor) -> Tensor:
    """Adds `slope @ rows` to the gradient of the hidden states, in fp32 at least."""
    if total is None:
        return _widened(slope @ rows)
    return total.addmm_(slope, rows) if total.dtype == slope.dtype else total.add_(slope @ rows)


def _columns(labels: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Where each label lies in a piece, `[N, 1]` (0 where it does not), and whether it does, `[N]`."""
    inside = (labels >= start) & (labels < stop)
    return torch.where(inside, labels - start, 0)[:, None], inside


def _widened(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype in _EXACT_SUMS else tensor.to(torch.float32)


def _no_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
