"""A small model to plan for, and a machine whose speeds are fixed numbers."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from residual_block import Block
from torch import nn

from snugfit.contexts import measured
from snugfit.devices import device_named
from snugfit.fake_device.personality import Personality
from snugfit.planner.constraints import Constraints
from snugfit.planner.planner import Planner
from snugfit.planner.probe import Place
from snugfit.recording import cublas
from snugfit.recording.cpu_clock import HostSpeeds
from snugfit.simulator.batch_shapes import skeleton_of
from snugfit.simulator.subjects import given_subject


class FixedSpeeds(HostSpeeds):
    """Speeds by which every machine plans the same: what operators took on this one counts for nothing."""

    def inside(self, run):
        return HostSpeeds.inside(self, run._replace(seconds=None))


SPEEDS = FixedSpeeds(
    operator_seconds=2e-5,
    product_rates=((1e5, 2e10), (1e8, 5e10)),
    dtype_factors={"bfloat16": 0.5},
    memory_seconds=((1e4, 5e-7), (1e7, 1e-3)),
    threads=1,
)
CPU = Place(card=device_named("cpu"), personality=Personality(kind="cpu"), speeds=SPEEDS)
CARD = Place(
    # The models are small: CUDA's context would be most of what they take.
    card=dataclasses.replace(device_named("rtx-3090"), context=measured(0)),
    personality=Personality(capability=(8, 6)),
)

GIVEN_BACK_BYTES = 0 if cublas.stays() else 2 * cublas.workspace_bytes((8, 6))
"""What products take and give back, which is much beside a small model, and is composed only roughly."""


class Stack(nn.Module):
    """Blocks on [samples, tokens, 16] inputs; activations are most of its memory."""

    def __init__(self, width: int = 32, blocks: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Linear(16, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.drop(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def cross_entropy(output, batch):
    return F.cross_entropy(output, batch[1])


def batch_of(samples: int = 16, tokens: int = 128):
    return ((samples, tokens, 16), torch.float32), ((samples,), torch.int64)


def planner(pool, *, place: Place = CPU, model=Stack, batch=None, gpus=1, nodes=1, **given) -> Planner:
    arguments = {
        "loss": cross_entropy, "optimizer": "adamw", "forward": None, "split": None, "loss_weight": "samples",
        "gpus": gpus, "nodes": nodes,
    }  # fmt: skip
    subject = given_subject(model, skeleton_of(batch or batch_of()), arguments)
    return Planner(subject, place, Constraints(**given), pool=pool)
