"""`snugfit check`: a gate for continuous integration, as its steps and its hook run it."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from snugfit.cli import main
from snugfit.simulator.baseline import compare

ROOT = Path(__file__).parents[3]
MODEL = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.grow, self.shrink, self.norm = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width)

    def forward(self, x):
        return x + self.shrink(torch.relu(self.grow(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(64, 64), nn.Linear(64, 10)
        self.blocks = nn.ModuleList(Block(64) for _ in range(10))

    def forward(self, x):
        x = self.first(x.flatten(2))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def build():
    return Net()
"""
LINE = "x = x + x.sigmoid()"
WORDS = ["model.py:build", "--image-size", "8", "--batch-size", "4096"]


@pytest.fixture
def there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    assert main(["estimate", *WORDS, "--device", "rtx-4090", "--json"]) == 0
    Path("memory.json").write_text(capsys.readouterr().out)
    return tmp_path


def grown():
    """The model with one activation more, which a line above moves."""
    before = "for block in self.blocks:"
    text = "# a comment\n" + MODEL.replace(before, f"{LINE}\n        {before}")
    Path("model.py").write_text(text)


def test_what_fits_passes_and_what_does_not_is_a_table(there, capsys):
    assert main(["check", *WORDS, "--fits", "rtx-4090,a100-40gb"]) == 0
    said = capsys.readouterr().out
    assert "a100-40gb  fits" in said and "Nothing is kept free" in said and "NCCL" not in said
    assert main(["check", *WORDS, "--fits", "rtx-4090", "--gpus", "2"]) == 0
    assert "NCCL comes on top" in capsys.readouterr().out
    assert main(["check", *WORDS, "--fits", "rtx-4090,a100-40gb", "--budget", "600MiB", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert not found["fits"] and [card["fits"] for card in found["estimate"]["devices"]] == [False, False]
    for words, code in ((["--budget", "1GiB"], 0), (["--budget", "20MiB"], 3)):
        assert main(["check", *WORDS, "--fits", "cpu", *words]) == code


def test_one_activation_more_is_caught_and_named(there, capsys):
    assert main(["check", *WORDS, "--against", "memory.json"]) == 0
    assert "+0.00%" in capsys.readouterr().out
    grown()
    assert main(["check", *WORDS, "--against", "memory.json", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    change = found["comparison"]["changes"][0]
    assert 0.005 < change["now_bytes"] / change["before_bytes"] - 1 < 0.015
    first = found["comparison"]["grew"][0]
    number = 1 + Path("model.py").read_text().splitlines().index(f"        {LINE}")
    assert (first["line"], first["code"]) == (f"model.py:{number}", LINE)
    assert main(["check", *WORDS, "--against", "memory.json", "--tolerance", "2%"]) == 0


def test_what_grows_beside_the_peak_is_named_too():
    """The segments of the allocator remember it, and so the total."""
    row = {"module": "", "category": "activations", "line": "net.py:3", "code": "x = x + y", "size_bytes": 0}
    rest = dict.fromkeys(("batch_shape", "recipe", "torch_version", "peak_phase", "peak_module"))
    before = {**rest, "title": "m", "devices": [], "sources": [], "peak_allocated_bytes": 100, "total_bytes": 200}
    found = compare(before, {**before, "sources": [{**row, "most_bytes": 7}], "total_bytes": 210}, 0.02)
    assert not found.within and not found.at_peak
    assert [(grown.line, grown.before_bytes, grown.now_bytes) for grown in found.grew] == [("net.py:3", 0, 7)]
    assert compare(before, before, 0.0).within and compare(before, {**before, "total_bytes": 190}, 0.0).within


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*WORDS, "--fits", "rtx-4091"], "did you mean 'rtx-4090'"),
        ([*WORDS, "--against", "absent.json"], "baseline 'absent.json' cannot be read: No such file"),
        (
            ["torchvision:resnet18", "--against", "memory.json"],
            "the baseline is of model.py:build, and this is torchvision",
        ),
        ([*WORDS, "--against", "memory.json", "--fits", "t4"], "the baseline is of rtx-4090, and this of t4-16gb"),
    ],
)
def test_wrong_input_is_told_in_one_message(there, capsys, words, said):
    assert main(["check", *words]) == 2
    shown = capsys.readouterr()
    assert said in shown.err and not shown.out and shown.err.count("snugfit:") == 1


@pytest.mark.parametrize(
    ("key", "value"), [("sources", 3), ("peak_allocated_bytes", "x"), ("title", 1), ("devices", 3), ("recipe", [1])]
)
def test_a_damaged_baseline_is_told(there, capsys, key, value):
    document = json.loads(Path("memory.json").read_text())
    Path("damaged.json").write_text(json.dumps({**document, key: value}))
    assert main(["check", *WORDS, "--against", "damaged.json"]) == 2
    assert "'damaged.json' was altered, or written by another version" in capsys.readouterr().err


def test_the_action_checks_and_comments(there):
    """Its steps but the first, by bash; `gh` is one that writes down what it was asked."""
    grown()
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    steps = {step["name"]: step for step in action["runs"]["steps"]}
    given = {"model": " ".join(WORDS), "against": "memory.json", "comment": "true"}
    inputs = {name: given.get(name, row.get("default")) for name, row in action["inputs"].items()}
    assert not given.keys() - action["inputs"].keys()
    contexts = {f"inputs.{name}": value for name, value in inputs.items()}
    contexts |= {"github.event.pull_request.number": "7", "github.repository": "owner/name"}
    tools = there / "tools"
    tools.mkdir()
    for name, does in {
        "snugfit": f'exec {sys.executable} -m snugfit "$@"',
        "gh": 'printf "%s\\n" "$@" > asked',
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{does}\n")
        (tools / name).chmod(0o755)
    runner = {"RUNNER_TEMP": there, "GITHUB_STEP_SUMMARY": there / "summary.md", "GITHUB_OUTPUT": there / "output"}

    def step(name):
        environment = {key: contexts[value.strip("${ }")] for key, value in steps[name]["env"].items()}
        made = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", **runner, **environment}
        line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", steps[name]["run"]]
        return subprocess.run(line, env={key: str(value) for key, value in made.items()}, check=False).returncode

    assert step("check") == 3
    contexts["steps.check.outputs.verdict"] = Path("output").read_text().strip().partition("=")[2]
    summary = Path("summary.md").read_text()
    assert "takes more memory than its baseline" in summary and f"{LINE} |" in summary
    assert step("comment") == 0
    asked = Path("asked").read_text().split()
    assert asked[:3] == ["pr", "comment", "7"] and Path(asked[asked.index("--body-file") + 1]).read_text() == summary


def test_the_hook_runs_the_gate(there, capsys):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["language"] == "python" and not hook["pass_filenames"]
    program, *words = shlex.split(hook["entry"])
    assert program == "snugfit" and main([*words, *WORDS, "--against", "memory.json"]) == 0


def test_a_script_that_trains_on_the_host_is_not_checked(tmp_path, capsys):
    text = "import torch\nmodel = torch.nn.Linear(8, 8)\noptimizer = torch.optim.SGD(model.parameters())\nfor _ in range(4):"
    (tmp_path / "train.py").write_text(f"{text}\n    model(torch.ones(2, 8)).sum().backward()\n    optimizer.step()\n")
    assert main(["check", "--fits", "rtx-3060-12gb", str(tmp_path / "train.py")]) == 2
    assert "puts nothing on the card" in capsys.readouterr().err
    assert main(["check", "--fits", "cpu", "--budget", "1GiB", str(tmp_path / "train.py")]) == 0
    assert "the first 3 steps (what is done only later" in capsys.readouterr().out
