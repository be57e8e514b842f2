"""Plans for training scripts as people write them: the lines are pasted into copies, which train in the budget."""

import json
import re
import shutil
import subprocess

import pytest
from command_line import run_command

from snugfit.cli import main

MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.body(self.norm(x))

class Model(nn.Module):
    def __init__(self, width, depth, words):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, words)

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def make_optimizer(self, lr):
        return torch.optim.AdamW(self.parameters(), lr=lr)
"""
SCRIPT = """
\"\"\"Trains a small model of words, as scripts with their settings on top do.\"\"\"
import math
import highspy  # stands for any library that takes time to import
import torch
from torch.nn import functional
from model import Model

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

def get_batch():
    x = torch.randint(64, (512, 9))
    return x[:, :-1].to(device), x[:, 1:].to(device)

model = Model(64, 4, 64)
model.to(device)
optimizer = model.make_optimizer(1e-3)
for step in range(4):
    x, y = get_batch()
    logits = model(x)
    loss = functional.cross_entropy(logits.view(-1, 64), y.reshape(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
"""


def written(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text.lstrip("\n"))
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A script and its model, in the current folder."""
    monkeypatch.chdir(written(tmp_path / "before", train=SCRIPT, model=MODEL))
    return tmp_path / "before"


def planned(capsys, *words):
    code = main(["plan", "--json", *words])
    out, err = capsys.readouterr()
    return code, json.loads(out) if code == 0 else None, err


def pasted(folder, plan):
    """A copy of a folder in which the diff of a plan is applied."""
    copy = folder.parent / "after"
    shutil.copytree(folder, copy)
    subprocess.run(["git", "apply", "-p0"], cwd=copy, input=plan["diff"].encode(), check=True)
    return copy


def measured(folder):
    """The most bytes that tensors take in a real run, and its losses."""
    done = run_command("profile", "--json", "--no-advice", folder / "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["allocator_peak_bytes"], re.findall(r"^loss (.*)$", done.stderr, re.MULTILINE)


def test_the_pasted_lines_train_in_the_budget_with_the_same_losses(folder, capfd):
    code, plan, err = planned(capfd, "--device", "cpu", "--budget", "25MiB", "train.py")
    assert code == 0, err
    assert err.count("made up") == 1 and err.count("loss") == 3  # what three simulated steps print, once
    assert plan["fidelity"]["level"] == "exact" and "snugfit.apply(model, snugfit.Recipe(" in plan["diff"]
    (before, losses), (after, same) = measured(folder), measured(pasted(folder, plan))
    assert before > plan["budget_bytes"] >= after
    assert plan["as_it_is"]["total_bytes"] == pytest.approx(before, rel=0.01)
    assert plan["estimate"]["peak_allocated_bytes"] == pytest.approx(after, rel=0.01)
    assert len(losses) == 4 and losses == same


def test_lines_of_plain_torch_train_as_before(folder, capsys):
    code, plan, err = planned(capsys, "--as", "torch", "--device", "rtx-4090", "--budget", "565MiB", "train.py")
    assert code == 0, err
    assert plan["recipe"]["checkpoint"] != "none" and plan["fidelity"]["level"] == "exact"
    assert "snugfit" not in plan["diff"] and "for block in model.blocks[:" in plan["diff"]
    assert re.search(r"^\+.*AdamW\(self\.parameters\(\), lr=lr, fused=True\)", plan["diff"], re.MULTILINE)
    assert [(one["file"], one["line"]) for one in plan["lines"]] == [("train.py", 17)]
    (before, losses), (after, same) = measured(folder), measured(pasted(folder, plan))
    assert after < before and losses == same


def test_a_script_that_ends_with_its_third_step_is_planned_as_one_that_goes_on(folder, capsys):
    words = "--device", "rtx-4090", "--budget", "565MiB", "train.py"
    _, goes_on, err = planned(capsys, *words)
    assert goes_on is not None, err
    (folder / "train.py").write_text((folder / "train.py").read_text().replace("range(4)", "range(3)"))
    _, ends, err = planned(capsys, *words)
    assert ends is not None, err
    assert ends["recipe"] == goes_on["recipe"] and goes_on["recipe"]["checkpoint"].startswith("blocks:")


def test_two_models_get_a_line_each(folder, capsys):
    both = SCRIPT.replace(
        "optimizer = model", "other = Model(64, 2, 64).to(device)\nopt = other.make_optimizer(1e-3)\noptimizer = model"
    )
    both = both.replace("loss = ", "loss = other(x).mean() + ").replace(
        "optimizer.step()", "optimizer.step()\n    opt.step()"
    )
    written(folder, train=both)
    code, plan, err = planned(capsys, "--device", "rtx-4090", "--pin", "checkpoint=all", "train.py")
    assert code == 0, err
    lines = [line for line in plan["diff"].splitlines() if line.startswith("+snugfit.apply")]
    assert [line.partition(",")[0] for line in lines] == ["+snugfit.apply(other", "+snugfit.apply(model"]


def test_where_no_place_is_found_the_lines_stand_alone(folder, capsys):
    change = (
        "optimizer = model.make_optimizer(1e-3)",
        "held = [model]\ndel model\noptimizer = torch.optim.SGD(held[0].parameters(), 1)",
    )
    written(folder, train=SCRIPT.replace(*change).replace("model(x)", "held[0](x)"))
    code, plan, err = planned(capsys, "--device", "rtx-4090", "--pin", "checkpoint=all", "train.py")
    assert code == 0, err
    assert plan["lines"] == [
        {"file": None, "line": None, "text": 'snugfit.apply(model, snugfit.Recipe(checkpoint="all"))'}
    ]
    assert (
        "holds the Model where its optimizer is made (train.py:19)" in plan["notes"][0] and "apply" not in plan["diff"]
    )
    before = plan["as_it_is"]["total_bytes"] - plan["estimate"]["context_bytes"]
    assert plan["estimate"]["peak_allocated_bytes"] < 0.6 * before


def test_a_budget_for_nothing_says_the_least(folder, capsys):
    code, _, err = planned(capsys, "--device", "rtx-4090", "--budget", "510MiB", "train.py")
    assert code == 3 and "checkpoint=" in err and "With the first of them the peak is in backward of" in err
    sizes = re.findall(r"^  (\d+) MiB", err.partition("The smallest budgets that work:")[2], re.MULTILINE)
    assert sizes and sizes == sorted(
        set(sizes), key=int, reverse=True
    )  # a wider fidelity that gains nothing is not said


def test_a_line_without_room_is_named_where_nothing_fits(folder, capsys):
    text = (folder / "train.py").read_text()
    (folder / "train.py").write_text(text.replace("optimizer = model", "rate = 1e-3; optimizer = model"))
    code, _, err = planned(capsys, "--device", "rtx-4090", "--budget", "510MiB", "--as", "torch", "train.py")
    assert code == 3 and "checkpoint=all could not be tried: " in err and "has no room for a statement before it" in err


AUTOCAST = "    with torch.autocast(device, torch.bfloat16):\n        logits = model(x)\n"


@pytest.mark.parametrize(
    "before, after, words, said",
    [
        ("optimizer.step()", "pass", [], "without a step of an optimizer"),
        ("model.make_optimizer(1e-3)", "torch.optim.SGD([])", [], "optimizer got an empty parameter list"),
        ("", "", ["--pin", "microbatch_size=1"], "belongs to the script's own loop"),
        ("", "", ["--as", "torch", "--pin", "offload_activations=all"], "no line of plain torch"),
        ("", "", ["--as", "torch", "--pin", "adapter=lora", "--allow", "different"], "no line of plain torch"),
        ("    logits = model(x)\n", AUTOCAST, ["--precision", "bf16-mixed"], "under autocast already"),
        (
            "optimizer = model.make_optimizer(1e-3)",
            "weights = list(model.parameters())\noptimizer = torch.optim.SGD(weights, 1e-3)",
            ["--pin", "adapter=lora", "--allow", "different"],
            "of its weights would be in no optimizer, as the script collects weights before the line",
        ),
    ],
    ids=[
        "no step",
        "no parameters",
        "of the loop",
        "of torch",
        "of torch alone",
        "its own precision",
        "collected before",
    ],
)
def test_what_cannot_be_planned_is_told_in_one_line(folder, capsys, before, after, words, said):
    written(folder, train=SCRIPT.replace(before, after))
    code, _, err = planned(capsys, "--device", "rtx-4090", *words, "train.py")
    assert (code, "snugfit/" in err.strip().splitlines()[-1]) == (2, False) and said in err
