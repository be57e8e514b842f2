"""`snugfit train --budget`: plans for the data, keeps the budget, shows predicted beside measured, refuses nonsense."""

import json

import pytest
from command_line import run_command

MODEL = """
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


def build(num_classes=10, width=64, depth=4):
    layers = [Layer(width) for _ in range(depth)]
    return nn.Sequential(nn.Flatten(), nn.Linear(192, width), *layers, nn.Linear(width, num_classes))
"""
"""Activations at batch 512 are most of the memory, so there is something to plan: which layers run again."""


def without(*fields):
    return [word for field in fields for word in ("--forbid", field)]


FEW = without("microbatch_size", "init", "loss_impl", "optimizer_impl", "step_in_backward")
"""A plan tries sixteen microbatches of 512 samples, one by one; all there is to choose is planner/test_plan.py's."""
LESS = without("init", "loss_impl", "optimizer_impl", "step_in_backward", "inplace", "offload_optimizer")
"""What is left takes less for fewer samples: microbatches, and layers that run again."""


@pytest.fixture
def where(tmp_path):
    (tmp_path / "wide.py").write_text(MODEL)
    return tmp_path


def training(*more):
    return [
        "train", "wide.py:build", "--data", "random", "--samples", "1024", "--image-size", "8", "--batch-size", "512",
        "--max-steps", "2", "--run-dir", "run", *more,
    ]  # fmt: skip


def test_the_budget_is_kept_and_the_plan_resumed(where):
    plain = run_command(*training("--json"), cwd=where)
    assert plain.returncode == 0, plain.stderr
    needed = json.loads(plain.stdout)["measured"]["peak_tensor_bytes"]
    assert json.loads(plain.stdout)["predicted"] is None
    budget = int(0.75 * needed)
    ended = run_command(*training("--overwrite", "--budget", f"{budget}B", "--json", *FEW), cwd=where)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    measured, predicted = result["measured"]["peak_tensor_bytes"], result["predicted"]["peak_tensor_bytes"]
    assert measured <= budget == result["predicted"]["budget_bytes"]
    assert abs(measured - predicted) <= 0.01 * measured
    assert result["fidelity"]["level"] == "exact"
    assert result["recipe"]["checkpoint"] != "none" and result["recipe"]["microbatch_size"] is None
    assert result["over_budget_bytes"] == 0 and result["over_budget"] == []
    assert (where / "run" / "plan.json").is_file()
    same_line = training("--budget", f"{budget}B", "--json", *FEW)
    resumed = run_command(*same_line, "--resume", "--max-steps", "3", cwd=where)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["predicted"] == result["predicted"]
    assert json.loads(resumed.stdout)["recipe"] == result["recipe"]


def test_an_impossible_budget_names_the_smallest(where):
    # their libraries take long to load; `snugfit plan` is told of all it may do (test_cli_plan.py)
    ended = run_command(*training("--budget", "1MiB", *FEW, *without("adapter", "quantize", "optimizer")), cwd=where)
    assert ended.returncode == 3, ended.stderr
    assert "smallest budgets that work" in ended.stderr and "MiB" in ended.stderr
    assert "Traceback" not in ended.stderr and not (where / "run").exists()


HIDDEN = """
import torch
from torch import nn

SCRATCH = 1_000_000


@torch.library.custom_op("snugfit_test::with_scratch", mutates_args=())
def with_scratch(x: torch.Tensor) -> torch.Tensor:
    if not x.any():  # a prediction runs operators on zeros
        return x.clone()
    scratch = x.new_empty(2 * x.shape[0], SCRATCH // 64)  # taken, and hardly touched
    scratch[0, 0] = 2
    return x * scratch[0, 0] / 2


with_scratch.register_fake(lambda x: torch.empty_like(x))
with_scratch.register_autograd(lambda context, gradient: gradient)


class Layer(nn.Sequential):
    def forward(self, x):
        return with_scratch(super().forward(x))


def build(num_classes=10, width=64, depth=4):
    layers = [Layer(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(depth)]
    return nn.Sequential(nn.Flatten(), nn.Linear(192, width), *layers, nn.Linear(width, num_classes))
"""
"""A kernel of an extension that takes memory for each sample, but only for values that a prediction does not have."""


def hidden(*more):
    return [word if word != "wide.py:build" else "hidden.py:build" for word in training("--max-steps", "8", *more)]


def test_a_run_over_its_budget_says_so_and_goes_on_with_less(where):
    (where / "hidden.py").write_text(HIDDEN)
    ended = run_command(*hidden("--budget", "16MiB", "--json", *LESS), cwd=where)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    budget, peak = result["predicted"]["budget_bytes"], result["measured"]["peak_tensor_bytes"]
    assert result["over_budget_bytes"] == peak - budget > 0
    first = result["over_budget"][0]
    assert first["during"] == "step 1" and first["over_bytes"] == first["peak_tensor_bytes"] - budget > 0
    assert [one["next_recipe"] for one in result["over_budget"][:-1]] == [
        one["recipe"] for one in result["over_budget"][1:]
    ]
    assert result["recipe"] == result["over_budget"][-1]["next_recipe"]
    assert result["peak_tensor_bytes_at_end"] <= budget and result["fidelity"]["level"] == "exact"
    assert "step 1 took" in ended.stderr and "over the budget of 16.0 MiB" in ended.stderr
    assert "were predicted. The run goes on with" in " ".join(ended.stderr.split())
    again = run_command("train", "--run-dir", "run", "--resume", cwd=where)  # the card of the finished run
    card = " ".join(
        again.stdout.split()
    )  # measured seconds decide which recipes come between, and so where a line ends
    assert again.returncode == 0 and "over budget" in card and "with the recipe above" in card
    plain = run_command(*hidden("--overwrite", "--json"), cwd=where)
    assert json.loads(plain.stdout)["over_budget_bytes"] is None
    assert result["metrics"]["train_loss"] == pytest.approx(json.loads(plain.stdout)["metrics"]["train_loss"], rel=1e-4)


def test_a_run_over_its_budget_with_nothing_left_goes_on_and_says_so(where):
    """The scratch does not depend on samples, so no fallback helps enough."""
    (where / "hidden.py").write_text(HIDDEN.replace("2 * x.shape[0], SCRATCH // 64", "2 * SCRATCH, 5"))
    ended = run_command(*hidden("--budget", "16MiB", "--json", "--max-steps", "20", *LESS), cwd=where)
    assert ended.returncode == 0, ended.stderr
    text, result = " ".join(ended.stderr.split()), json.loads(ended.stdout)
    over = result["over_budget"]
    assert len(over) > 1
    steps = [one for one in over if one["during"].startswith("step")]
    least = min(one["peak_tensor_bytes"] for one in steps)
    assert result["recipe"] == next(one["recipe"] for one in steps if one["peak_tensor_bytes"] <= 1.01 * least)
    assert "whose steps took the least of all that were measured" in text and text.count("over the budget of") == len(
        over
    )
    assert result["over_budget_bytes"] > 0 and result["peak_tensor_bytes_at_end"] > 16 * 2**20
