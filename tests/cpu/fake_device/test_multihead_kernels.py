"""Multi-head attention and encoder layers in evaluation: one operator of torch, with an H100's bytes and a CPU's values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from snugfit.fake_device import multihead_kernels
from snugfit.recording import cublas

MEASURED = Path(__file__).parents[3] / "benchmarks/results/nvidia-h100-80gb-hbm3-torch2.11.0/kernels.jsonl"
ROWS = [json.loads(line) for line in MEASURED.read_text(encoding="utf-8").splitlines()]
EVALUATIONS = [row for row in ROWS if row["call"] in ("multihead evaluation", "encoder layer evaluation")]


class Whole(torch.nn.Module):
    """Runs a module in evaluation, and a product whose weights learn."""

    def __init__(self, kind, row):
        super().__init__()
        width, heads = row["width"], row["heads"]
        if kind == "multihead evaluation":
            self.inner = torch.nn.MultiheadAttention(width, heads, batch_first=True)
        else:
            self.inner = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
        self.inner = self.inner.to(getattr(torch, row["dtype"].removeprefix("torch.")))
        self.head = torch.nn.Linear(width, 1)

    def forward(self, x):
        with torch.no_grad():
            x = x.to(next(self.inner.parameters()).dtype)
            self.inner.eval()
            attends = isinstance(self.inner, torch.nn.MultiheadAttention)
            x = self.inner(x, x, x, need_weights=False)[0] if attends else self.inner(x)
        return self.head(x.float())


def test_the_modules_take_what_they_took_on_an_h100(pool):
    import functools

    from snugfit.fake_device.personality import Personality
    from snugfit.recipe import Recipe
    from snugfit.recording.trace import ALLOC, FREE, WORKSPACE
    from snugfit.simulator.given_training import simulate_training

    for row in EVALUATIONS:
        batch = (torch.empty(row["batch"], row["length"], row["width"], device="meta"),) * 2
        recording = simulate_training(
            functools.partial(Whole, row["call"], row),
            Recipe(),
            batch,
            personality=Personality(capability=(9, 0)),
            evaluate=False,
            pool=pool,
            arguments={"loss": squared},
        )
        trace = recording.trace
        now = most = 0
        alive = {}
        for kind, subject in zip(trace.kinds, trace.subjects, strict=True):
            if kind == ALLOC and trace.storages[subject].module == "inner" and trace.storages[subject].operator != COPY:
                alive[subject] = trace.storages[subject].nbytes
                now += alive[subject]
            elif kind == FREE and subject in alive:
                now -= alive.pop(subject)
            elif kind == WORKSPACE and trace.workspaces[subject].module == "inner":
                most = max(most, now + trace.workspaces[subject].nbytes)
            most = max(most, now)
        # Seen with torch 2.11, where what cuBLASLt works in stays, and was there before.
        product = 0 if cublas.stays() else cublas.LT_BYTES
        assert most == pytest.approx(row["inside"] + row["kept"] + product, rel=0.005), row


COPY = "aten._to_copy.default"


def squared(output, batch):
    return output.square().mean()


def test_the_operators_compute_what_torch_computes():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 16)
    other = torch.randn(2, 5, 16)
    module = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    weights = (module.in_proj_weight, module.in_proj_bias, module.out_proj.weight, module.out_proj.bias)
    with torch.no_grad():
        for key in (x, other):
            for wanted in (False, True):
                got = multihead_kernels.attention(x, key, key, 16, 4, *weights, None, wanted, True)
                want = torch._native_multi_head_attention(x, key, key, 16, 4, *weights, None, wanted, True)
                torch.testing.assert_close(got[0], want[0])
                if wanted:
                    torch.testing.assert_close(got[1], want[1])
        for first in (False, True):
            for act in ("relu", "gelu"):
                layer = torch.nn.TransformerEncoderLayer(16, 4, 32, activation=act, norm_first=first, batch_first=True)
                layer.eval()
                attention = layer.self_attn
                got = multihead_kernels.encoder_layer(
                    x, 16, 4, attention.in_proj_weight, attention.in_proj_bias, attention.out_proj.weight,
                    attention.out_proj.bias, act == "gelu", first, layer.norm1.eps, layer.norm1.weight, layer.norm1.bias,
                    layer.norm2.weight, layer.norm2.bias, layer.linear1.weight, layer.linear1.bias,
                    layer.linear2.weight, layer.linear2.bias,
                )  # fmt: skip
                torch.testing.assert_close(got, layer(x))


def test_only_real_torch_functions_are_seen_in_a_recording():
    class Own(torch.Tensor):
        pass

    plain = (torch.ones(2), torch.nn.Parameter(torch.ones(2)))
    with torch.overrides.BaseTorchFunctionMode():
        assert torch.overrides.has_torch_function(plain)
        assert not multihead_kernels.has_torch_function(plain)
        assert multihead_kernels.has_torch_function((torch.ones(2).as_subclass(Own),))
