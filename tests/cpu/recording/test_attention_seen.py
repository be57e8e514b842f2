"""An estimate names the attention kernels that its run took."""

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import snugfit
from snugfit import Recipe


class Attending(nn.Module):
    def __init__(self, masked=False):
        super().__init__()
        self.blocks = nn.ModuleList(nn.MultiheadAttention(64, 2, batch_first=True) for _ in range(3))
        self.masked = masked

    def forward(self, x):
        mask = torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype, device=x.device) if self.masked else None
        for block in self.blocks:
            x = block(x, x, x, need_weights=False, attn_mask=mask)[0]
        return x


@pytest.mark.parametrize(
    ("device", "precision", "masked", "attention", "kernel"),
    [
        ("a100-40gb", "bf16-true", False, "auto", "flash"),
        ("a100-40gb", "bf16-true", True, "auto", "memory-efficient"),
        ("a100-40gb", "fp32", False, "sdpa", "memory-efficient"),
        ("t4-16gb", "16-mixed", False, "sdpa", "memory-efficient"),
        ("a100-40gb", "fp32", False, "eager", "math"),
        ("cpu", "fp32", False, "sdpa", "flash"),
        ("cpu", "fp32", False, "eager", "math"),
    ],
)
def test_kernels_are_named(device, precision, masked, attention, kernel):
    estimate = snugfit.estimate(
        Attending(masked),
        ((2, 16, 64), torch.float32),
        loss=lambda output, batch: output.float().square().mean(),
        recipe=Recipe(precision=precision, attention=attention),
        device=device,
    )
    assert estimate.attention_kernels == {kernel: 3}
    assert f"{kernel} in 3 modules" in estimate.card()


def test_a_model_without_attention_names_none():
    estimate = snugfit.estimate(
        nn.Linear(4, 4), ((2, 4), torch.float32), loss=lambda output, batch: output.sum(), device="cpu"
    )
    assert estimate.attention_kernels == {} and "attention" not in estimate.card()


def test_the_math_path_is_told_by_its_softmax():
    """What the table goes by: only torch's math path takes the safe softmax."""
    seen = []

    class Log(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.randn(1, 2, 4, 8)
    with Log(), sdpa_kernel(SDPBackend.MATH):
        nn.functional.scaled_dot_product_attention(x, x, x)
    assert "aten._safe_softmax.default" in seen
