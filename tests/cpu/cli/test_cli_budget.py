"""`snugfit train --budget`: plans for the data, keeps the budget, shows predicted beside measured, refuses nonsense."""

import json

import pytest
from command_line import run_command

MODEL = """
from torch import nn


def build(num_classes=10, width=256, depth=4):
    layers = [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(depth)]
    return nn.Sequential(nn.Flatten(), nn.Linear(192, width), *layers, nn.Linear(width, num_classes))
"""
"""Activations at batch 512 are most of the memory, so there is something to plan."""


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
    ended = run_command(*training("--overwrite", "--budget", f"{budget}B", "--json"), cwd=where)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    measured, predicted = result["measured"]["peak_tensor_bytes"], result["predicted"]["peak_tensor_bytes"]
    assert measured <= budget == result["predicted"]["budget_bytes"]
    assert abs(measured - predicted) <= 0.01 * measured
    assert result["fidelity"]["level"] == "exact"
    assert result["recipe"]["checkpoint"] != "none" or result["recipe"]["microbatch_size"] is not None
    assert (where / "run" / "plan.json").is_file()
    resumed = run_command("train", "--run-dir", "run", "--resume", "--max-steps", "3", "--json", cwd=where)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["predicted"] == result["predicted"]
    assert json.loads(resumed.stdout)["recipe"] == result["recipe"]


def test_an_impossible_budget_names_the_smallest(where):
    ended = run_command(*training("--budget", "2MiB"), cwd=where)
    assert ended.returncode == 3, ended.stderr
    assert "smallest budgets that work" in ended.stderr and "MiB" in ended.stderr
    assert "Traceback" not in ended.stderr and not (where / "run").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--budget", "8 gigs"), "8 gigs"),
        (("--budget", "-1GiB"), "-1GiB"),
        (("--allow", "rounding"), "--budget"),
        (("--budget", "1GiB", "--pin", "checkpoint=none", "--forbid", "checkpoint"), "pinned to none and forbidden"),
        (("--budget", "1GiB", "--checkpoint", "all", "--pin", "checkpoint=none"), "one of the two"),
        (("--budget", "1GiB", "--allow", "everything"), "no level of fidelity"),
    ],
)
def test_bad_requests(where, more, message):
    ended = run_command(*training(*more), cwd=where)
    assert ended.returncode == 2, ended.stderr
    assert message in ended.stderr and "Traceback" not in ended.stderr
    assert not (where / "run").exists()
