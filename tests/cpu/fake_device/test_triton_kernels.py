"""Kernels written in Triton, on a card that is not there."""

import pytest
import torch
from torch import nn

import snugfit

triton = pytest.importorskip("triton", reason="triton is not installed")


@triton.jit
def scale_kernel(pointer, count, block: triton.language.constexpr):
    at = triton.language.program_id(0) * block + triton.language.arange(0, block)
    values = triton.language.load(pointer + at, mask=at < count)
    triton.language.store(pointer + at, values * 2, mask=at < count)


@triton.autotune([triton.Config({"block": 256})], key=["count"])
@triton.jit
def tuned_kernel(pointer, count, block: triton.language.constexpr):
    at = triton.language.program_id(0) * block + triton.language.arange(0, block)
    triton.language.store(pointer + at, 0.0, mask=at < count)


def step(model, optimizer, batch, launch):
    output = model(batch)
    scratch = torch.empty_like(output)
    if launch:
        scale_kernel[(4,)](scratch, scratch.numel(), block=256)
        tuned_kernel[lambda settings: (4,)](scratch, scratch.numel())
    output.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def with_kernels(model, optimizer, batch):
    step(model, optimizer, batch, True)


def without(model, optimizer, batch):
    step(model, optimizer, batch, False)


def test_a_kernel_takes_no_memory_of_its_own_some_time_and_is_named():
    request = (nn.Linear(512, 2048), ((256, 512), torch.float32))
    plain, launched = (
        snugfit.estimate(*request, optimizer="adamw", step=one, device="rtx-4090") for one in (without, with_kernels)
    )
    assert launched.peak_allocated_bytes == plain.peak_allocated_bytes
    assert launched.step_seconds > plain.step_seconds
    named = "\n".join(launched.answered)
    assert "scale_kernel is written in Triton" in named and "tuned_kernel is written in Triton" in named
