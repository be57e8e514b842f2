"""Small transformers on which the host's part of a step is measured, and what may stand behind their blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

BLOCKS = 4
_MANY = 30
"""Rounds of what stands behind the blocks."""


def model(width: int, *, blocks: int = BLOCKS, then: Callable[[torch.Tensor], Any] | None = None) -> nn.Module:
    """Returns a model of blocks.

    Args:
        width: Features of a token.
        blocks: How many.
        then: What its output goes through.
    """
    return _Model(width, blocks, then)


def loss(output: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """Returns how far the output is from the batch."""
    return (output - batch).square().mean()


def noted(x: torch.Tensor) -> torch.Tensor:
    """Goes through operators that autograd notes."""
    for _ in range(_MANY):
        x = torch.sin(x * 0.5).neg() + x
    return x


def viewing(x: torch.Tensor) -> torch.Tensor:
    """Goes through views."""
    for _ in range(_MANY):
        x = x.transpose(1, 2).unsqueeze(0).flatten(0, 1).transpose(1, 2)
    return x


class Coded(torch.autograd.Function):
    """Operators that Python calls and nobody notes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Goes through them."""
        return _coded(x)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> torch.Tensor:
        """Goes through them again."""
        return _coded(slope)


def _coded(x: torch.Tensor) -> torch.Tensor:
    total, rows = torch.zeros_like(x), x[0]
    for _ in range(_MANY):
        positive = (x > 0) & (x < 1)
        total += torch.where(positive, x - total, 0)
        total[0] += (rows[:, : len(rows)] @ rows).mul_(0.01)
    return x + total.mul_(0.5)


class _Model(nn.Module):
    """Blocks of a transformer, and something behind them."""

    def __init__(self, width: int, blocks: int, then: Callable[[torch.Tensor], Any] | None) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[_Block(width) for _ in range(blocks)])
        self.then = then

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Goes through them."""
        outputs: torch.Tensor = self.blocks(inputs)
        return outputs if self.then is None else self.then(outputs)


class _Block(nn.Module):
    """A block of a transformer, as people write it: modules, views and attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Goes through it."""
        samples, tokens, width = inputs.shape
        heads = self.qkv(self.before(inputs)).reshape(samples, tokens, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads.unbind(0)).transpose(1, 2).reshape(samples, tokens, width)
        inputs = inputs + self.out(mixed)
        return torch.add(inputs, self.narrow(F.gelu(self.wide(self.between(inputs)))))
