"""`snugfit plan` as people type it: what comes out, and one helpful message for what cannot be."""

import json
import subprocess
import sys

import patience
import pytest
from command_line import environment, run_command

from snugfit.recipe import Recipe

MODEL = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.layers(self.norm(x))


class Net(nn.Module):
    def __init__(self, width=64, blocks=3):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def build():
    return Net()
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "net.py").write_text(MODEL)
    return tmp_path


PLAN = ("plan", "net.py:build", "--image-size", "64", "--batch-size", "64", "--device", "rtx-3090")


FEW = [
    word
    for field in ("offload_activations", "offload_optimizer", "step_in_backward", "loss_impl", "init")
    for word in ("--forbid", field)
]
"""Leaves layers that run again to choose, and little else: what a plan finds among everything is planner/test_plan.py's."""


def plan(folder, *words):
    return run_command(*PLAN, *words, cwd=folder)


def test_json_recipe_and_figure_without_torch_in_its_process(folder):
    words = ["--budget", "500MiB", "--json", "-o", "recipe.yaml", "--figure", "plan.svg", *FEW]
    words += ["--forbid", "inplace", "--forbid", "microbatch_size"]
    code = (
        "import sys\nfrom snugfit.cli import main\nassert main(sys.argv[1:]) == 0\nassert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *PLAN, *words], cwd=folder, env=environment(), capture_output=True, text=True,
        timeout=patience.SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {
        "recipe", "estimate", "fidelity", "frontier", "reasons", "slowdown", "budget_bytes", "margin_bytes",
    } <= document.keys()  # fmt: skip
    assert document["budget_bytes"] == 500 * 2**20 and document["slowdown"] >= 1
    assert document["estimate"]["devices"][0]["fits"] is True
    assert (folder / "plan.svg").read_text().startswith("<?xml")
    again = run_command(
        "estimate", "net.py:build", "--image-size", "64", "--batch-size", "64", "--device", "rtx-3090", "--json",
        "--recipe", "recipe.yaml", cwd=folder,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    estimate = json.loads(again.stdout)
    assert estimate["total_bytes"] == document["estimate"]["total_bytes"]
    assert estimate["step_seconds"] == pytest.approx(document["estimate"]["step_seconds"])

    (folder / "plan.json").write_text(done.stdout)
    code = code.replace("torch' not in", "torch' not in sys.modules and 'numpy' not in")
    for budget, recipe in (("500MiB", document["recipe"]), ("20GiB", document["frontier"][-1]["recipe"])):
        words = ["plan", "--from", "plan.json", "--budget", budget, "--json", "-o", "again.yaml"]
        done = subprocess.run(
            [sys.executable, "-c", code, *words], cwd=folder, env=environment(), capture_output=True, text=True,
            timeout=patience.SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["recipe"] == recipe and answer["batch_shape"] == document["estimate"]["batch_shape"]
        assert Recipe.from_yaml(folder / "again.yaml").to_mapping() == recipe


def test_nothing_fits_ten_mebibytes(folder):
    done = plan(folder, "--budget", "10MiB", *FEW, "--forbid", "adapter", "--forbid", "quantize")
    assert done.returncode == 3 and done.stdout == ""
    for part in ("does not fit 10.0 MiB", "smallest budgets that work", "MiB with --allow rounding"):
        assert part in done.stderr


def test_the_largest_batch(folder):
    done = run_command(
        "plan", "net.py:build", "--image-size", "64", "--device", "rtx-3090", "--budget", "450MiB", "--maximize",
        "batch-size", "--json", "-o", "plan.json", *FEW, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    size = document["maximized"]["batch_size"]
    assert size > 4 and document["recipe"]["microbatch_size"] is None
    assert document["estimate"]["batch_shape"].startswith(f"{size} x ")
    assert json.loads((folder / "plan.json").read_text()) == document
    assert document["estimate"]["devices"][0]["fits"] is True


@pytest.mark.parametrize(
    "words", [("--minimize", "gpus"), ("--gpus", "auto"), ("--minimize", "gpus", "--gpus", "auto")]
)
def test_two_spellings_of_the_fewest_gpus(monkeypatch, words):
    from snugfit.cli import main
    from snugfit.errors import DoesNotFitError

    asked = {}

    def plan_named(named, **given):
        asked.update(given)
        raise DoesNotFitError("that was all")

    monkeypatch.setattr("snugfit.planner.plan.plan_named", plan_named)
    assert main(["plan", "torchvision:resnet18", "--device", "rtx-3090", *words]) == 3
    assert asked["fewest_gpus"] is True and asked["workload"].gpus == 1
