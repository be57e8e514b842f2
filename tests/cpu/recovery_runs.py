"""Runs in which memory really runs out, shared by CPU (a limit on the process) and CUDA (a share of the card)."""

from __future__ import annotations

import torch
from torch import nn

import snugfit
from snugfit import Recipe

WIDTH = 512


class Wide(nn.Module):
    """Residual layers whose activations are many times their weights, on [samples, 512]."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x)) * 0.1
        return x


def mean_square(output, batch):
    """Mean over samples."""
    return (output - batch[1]).square().mean()


def trained(device, steps=2, samples=2048, before_step=lambda step: None, **fields):
    """Trains in float64; returns the weights on the host and the trainer."""
    torch.manual_seed(0)
    model = Wide().double()
    generator = torch.Generator().manual_seed(1)
    shape = (samples, WIDTH)
    batches = [
        tuple(torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2)) for _ in range(steps)
    ]
    trainer = snugfit.prepare(
        model, Recipe(**fields), loss=mean_square, optimizer="sgd", momentum=0.9, lr=0.1, device=device
    )
    for step, batch in enumerate(batches):
        before_step(step)
        trainer.step(batch)
    trainer.finish()
    return [weight.detach().cpu() for weight in model.parameters()], trainer


def difference(one, other) -> float:
    """The largest relative difference between the weights of two runs."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(one, other, strict=True))
