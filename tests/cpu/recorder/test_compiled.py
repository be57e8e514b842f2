"""Compiled steps in a simulation: what is saved, fused and reused is what torch's compiler does."""

import shutil

import pytest
import torch
from benchmarks.cpu_truth import Case, measured, predicted
from small_models import cross_entropy, make_batches, make_model
from torch import nn

import snugfit
from snugfit import Recipe, SnugfitWarning
from snugfit.fake_device.personality import Personality
from snugfit.recording.replay import replay
from snugfit.simulator.given_training import simulate_training
from snugfit.workers.pool import shared_pool

CASE = Case(
    lambda: make_model("mlp", torch.float32),
    lambda: make_batches("mlp", 256, 1, torch.float32)[0],
    cross_entropy,
    False,
)


class Chain(nn.Module):
    """Elementwise operators of which only the first and the last value need memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        x = self.layer(x)
        for _ in range(6):
            x = torch.sin(x) * 2
        return x


def _chain(recipe, kind):
    batch = (torch.empty(2048, 64, device="meta"), torch.empty(2048, 64, device="meta"))
    settings = {"loss": lambda output, batch: (output - batch[1]).square().mean()}
    return simulate_training(Chain(), recipe, batch, personality=Personality(kind=kind), arguments=settings)


def test_what_is_saved_for_backward_is_predicted_to_the_byte():
    recipe = Recipe(compile="aot_eager_decomp_partition", compile_memory_budget=0.3)
    torch._dynamo.reset()
    assert predicted(CASE, recipe, shared_pool()) == measured(CASE, recipe)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor on cpu needs a C++ compiler")
def test_what_inductor_makes_is_predicted_but_for_a_few_scalars():
    def batch():
        return torch.randn(256, 64), torch.randn(256, 64)

    case = Case(Chain, batch, lambda output, batch: (output - batch[1]).square().mean(), False)
    torch._dynamo.reset()
    recipe = Recipe(compile="inductor")
    found = predicted(case, recipe, shared_pool())[0]
    assert found == pytest.approx(measured(case, recipe)[0], abs=64)
    assert predicted(case, Recipe(), shared_pool())[0] > found + 256 * 64 * 4


def test_inductor_fuses_on_a_simulated_card():
    compiled, eager = _chain(Recipe(compile="inductor"), "cuda"), _chain(Recipe(), "cuda")
    names = [run.operator for run in compiled.trace.runs]
    assert any("fused_kernel" in name for name in names)
    assert not any("sin" in name for name in names)
    assert any(run.product for run in compiled.trace.runs)  # library kernels that write where they are told
    assert replay(compiled.trace).peak_allocated_bytes < replay(eager.trace).peak_allocated_bytes - 3 * 2048 * 64 * 4


class Broken(Chain):
    """Reads a value in the middle of its forward pass."""

    def forward(self, x):
        x = self.layer(x)
        torch._dynamo.graph_break()
        return torch.sin(x) * 2


def test_a_broken_graph_is_told():
    batch = (torch.empty(64, 64), torch.empty(64, 64))
    with pytest.warns(SnugfitWarning) as told:
        snugfit.estimate(
            Broken(), batch, loss=lambda output, batch: output.mean(), device="cpu",
            recipe=Recipe(compile="aot_eager_decomp_partition"),
        )  # fmt: skip
    assert any("cannot trace the code whole: its graph breaks, the first time" in str(one.message) for one in told)


def test_the_bound_is_said():
    batch = (torch.empty(64, 64), torch.empty(64, 64))
    for device, bound in (("cpu", "within 5% of measured runs"), ("rtx-4090", "within 8% of three published runs")):
        with pytest.warns(SnugfitWarning, match=bound):
            snugfit.estimate(
                Chain(), batch, loss=lambda output, batch: output.mean(), device=device,
                recipe=Recipe(compile="aot_eager_decomp_partition"),
            )  # fmt: skip
