"""`snugfit export`: from a recipe, a plan or a run to another tool's file."""

import json
from pathlib import Path

import pytest
import yaml

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
    plan = {"recipe": RECIPE.to_mapping(), "budgets": {"workload": settings.to_mapping()}}
    (tmp_path / "whole_plan.json").write_text(json.dumps(plan))
    (tmp_path / "odd.json").write_text(json.dumps({**plan, "budgets": {"workload": 3}, "workload": None}))
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


@pytest.mark.parametrize(
    "source",
    [("recipe.yaml", *SETTINGS), ("plan.json", *SETTINGS), ("odd.json", *SETTINGS), ("whole_plan.json",), ("run",)],
)
def test_every_source_says_the_same(here, capsys, source):
    assert main(["export", *source, "--to", "deepspeed"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == EXPECTED.config
    assert "checkpoint=all" in printed.err and not (here / "ds_config.json").exists()


def test_an_estimate_keeps_its_batch(here, capsys):
    estimate = {"recipe": RECIPE.to_mapping(), "batch_size": 128, "gpus": 2, "nodes": 1, "title": "model.py:build"}
    Path("estimate.json").write_text(json.dumps(estimate))
    assert main(["export", "estimate.json", "--to", "hf"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 2 * found["per_device_train_batch_size"] * found["gradient_accumulation_steps"] == 128


def test_options_go_before_a_plans_settings(here, capsys):
    assert main(["export", "whole_plan.json", "--to", "hf", "--batch-size", "32", "--gpus", "1"]) == 0
    arguments = json.loads(capsys.readouterr().out)
    assert arguments["gradient_accumulation_steps"] == 8 and arguments["learning_rate"] == 3e-4


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
    assert document == {**EXPECTED.to_mapping(), "costs": None, "places": None}


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


def test_to_a_tool_with_a_table(here, capsys):
    assert main(["export", "run", "--to", "axolotl", "--model", "hf:org/model", "--seq-len", "64", "-o", "a.yaml"]) == 0
    assert "- datasets: what you train on." in capsys.readouterr().out
    written = yaml.safe_load((here / "a.yaml").read_text())
    assert (written["base_model"], written["sequence_len"], written["micro_batch_size"]) == ("org/model", 64, 4)
    assert main(["export", "run", "--to", "torchtitan"]) == 0
    assert "--training.local_batch_size=4\n" in capsys.readouterr().out


def test_what_the_tool_has_no_word_for_is_priced(here, capsys):
    (here / "model.py").write_text(MODEL)
    Recipe(checkpoint="every:2", step_in_backward=True).to_yaml(here / "other.yaml")
    words = [
        "export",
        "other.yaml",
        "--to",
        "hf",
        "--batch-size",
        "65536",
        "--model",
        "model.py:build",
        "--image-size",
        "8",
    ]
    assert main([*words, "--device", "rtx-3090", "--json"]) == 0
    costs = json.loads(capsys.readouterr().out)["costs"]
    rows = {row["field"]: row for row in costs["fields"]}
    assert rows.keys() == {"checkpoint", "step_in_backward"} and rows["checkpoint"]["done"] == "all"
    assert costs["fits"] and costs["export_bytes"] - costs["recipe_bytes"] != 0
    assert main([*words, "--device", "rtx-3090"]) == 0
    assert "- step_in_backward=False in place of True:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("title", "named"), [("hf:org/model", "org/model"), ("hf:config.json", None), ("net.py:f", None)]
)
def test_a_plan_says_what_it_is_for(here, capsys, title, named):
    plan = {
        "recipe": RECIPE.replace(shard="none").to_mapping(),
        "estimate": {"title": title, "batch_shape": "8 x 2048"},
    }
    (here / "text.json").write_text(json.dumps(plan))
    assert main(["export", "text.json", "--to", "axolotl"]) == 0
    written = yaml.safe_load(capsys.readouterr().out)
    assert written.get("base_model") == named
    assert written.get("sequence_len") == (2048 if title.startswith("hf:") else None)


def test_estimate_reads_what_export_writes(here, capsys):
    """The recipe of the file, with all fields accounted for, and options before it."""
    config = {
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 64,
        "num_attention_heads": 2, "num_key_value_heads": 2,
    }  # fmt: skip
    (here / "config.json").write_text(json.dumps(config))
    Recipe(precision="bf16-mixed", checkpoint="all", microbatch_size=4).to_yaml(here / "other.yaml")
    words = ["export", "other.yaml", "--batch-size", "8", "--model", "hf:config.json", "--seq-len", "32"]
    assert main([*words, "--to", "llamafactory", "-o", "lf.yaml"]) == 0
    capsys.readouterr()
    assert main(["estimate", "--from", "lf.yaml", "--device", "rtx-3090", "--json"]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert (document["batch_shape"], document["recipe"]["checkpoint"]) == ("8 x 32", "all")
    assert document["imported"]["not_understood"] == {} and document["imported"]["tool"] == "LLaMA-Factory"
    assert "snugfit: lf.yaml: changes no memory" in shown.err
    assert main(["check", "lf.yaml", "--fits", "rtx-3090", "--checkpoint", "none", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["estimate"]["recipe"]["checkpoint"] == "none"


@pytest.mark.parametrize(
    ("typed", "unsaid"),
    [
        (("recipe.yaml",), "--batch-size, --lr, --epochs, --clip-norm"),
        (("recipe.yaml", *SETTINGS), "--epochs"),
        (("recipe.yaml", *SETTINGS, "--epochs", "1"), None),
        (("whole_plan.json",), "--epochs"),
        (("run",), None),  # which was trained by what it has
    ],
)
def test_defaults_of_ours_are_told(here, capsys, typed, unsaid):
    assert main(["export", *typed, "--to", "hf", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    told = [note.rpartition("transformers: ")[2] for note in notes if note.startswith("Not given")]
    assert told == ([] if unsaid is None else [f"{unsaid}."])
