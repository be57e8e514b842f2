"""`snugfit export`: from a recipe, a plan or a run to another tool's file."""

import json

import pytest

from snugfit.cli import main
from snugfit.interop.deepspeed_config import deepspeed_export
from snugfit.recipe import Recipe
from snugfit.run import Run
from snugfit.runs.request import Request
from snugfit.runs.run_dir import RunDirectory
from snugfit.workload import Workload

RECIPE = Recipe(precision="bf16-mixed", microbatch_size=4, shard="full", checkpoint="all")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    RECIPE.to_yaml(tmp_path / "recipe.yaml")
    (tmp_path / "plan.json").write_text(json.dumps({"recipe": RECIPE.to_mapping(), "budget_bytes": 1}))
    settings = Workload(batch_size=64, gpus=4, lr=3e-4, clip_norm=1.0)
    request = Request(
        model="model.py:build", model_args=("width=8",), data="random", task=None, image_size=8, seq_len=None, packing=False,
        text_column=None, label_column=None, prompt_column=None, samples=None, device="cpu", settings=settings,
    )  # fmt: skip
    with RunDirectory.create(tmp_path / "run", RECIPE, request.to_mapping()):
        pass
    return tmp_path


MODEL = """
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        return x + self.layer(x).relu()


def build(width=64, num_classes=10):
    blocks = nn.Sequential(Block(width), Block(width))
    return nn.Sequential(nn.Flatten(), nn.Linear(192, width), blocks, nn.Linear(width, num_classes))
"""
EXPECTED = deepspeed_export(Run(RECIPE, Workload(batch_size=64, gpus=4, lr=3e-4, clip_norm=1.0)))
SETTINGS = ("--gpus", "4", "--batch-size", "64", "--lr", "3e-4", "--clip-norm", "1")


@pytest.mark.parametrize("source", [("recipe.yaml", *SETTINGS), ("plan.json", *SETTINGS), ("run",)])
def test_every_source_says_the_same(here, capsys, source):
    assert main(["export", *source, "--to", "deepspeed"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == EXPECTED.config
    assert "checkpoint=all" in printed.err and not (here / "ds_config.json").exists()


def test_into_a_file_with_what_it_does_not_say_on_stdout(here, capsys):
    words = ["export", "run", "--to", "deepspeed", "-o", "ds_config.json", "--offload", "nvme", "--lr", "1e-5"]
    assert main([*words, "--nvme-path", "/fast"]) == 0
    config = json.loads((here / "ds_config.json").read_text())
    assert config["zero_optimization"]["offload_param"]["nvme_path"] == "/fast"
    assert config["optimizer"]["params"]["lr"] == 1e-5 and config["train_batch_size"] == 64
    printed = capsys.readouterr()
    assert "What deepspeed's file does not say" in printed.out and "wrote ds_config.json" in printed.err


def test_one_document(here, capsys):
    assert main(["export", "run", "--to", "deepspeed", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {**EXPECTED.to_mapping(), "places": None}


def test_where_state_should_be_is_computed_for_the_runs_model(here, capsys):
    (here / "model.py").write_text(MODEL)
    words = ["export", "run", "--to", "deepspeed", "--json", "--device", "rtx-3090", "--host-budget", "64GiB"]
    assert main([*words, "--gpus", "2", "--offload", "nvme"]) == 0
    places = json.loads(capsys.readouterr().out)["places"]
    assert places["chosen"] == "on each GPU" and "NVMe is not worth it" in places["verdict"]
    assert [place["fits"] for place in places["places"]] == [True] * 4
    assert places["largest_tensor"] == 192 * 8
    # Four bytes each of weight, gradient and two moments; every tensor is rounded up to 512 bytes, and there are 8.
    parameters = 192 * 8 + 8 + 2 * (8 * 8 + 8) + 8 * 10 + 10
    assert parameters * 16 <= places["state_bytes"] < parameters * 16 + 4 * 8 * 512
