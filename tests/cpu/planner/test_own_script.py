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
        self.norm, self.body = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

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
import torch
from torch.nn import functional
from model import Model

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

def get_batch():
    x = torch.randint(64, (512, 9))
    return x[:, :-1].to(device), x[:, 1:].to(device)

model = Model(64, 6, 64)
model.to(device)
optimizer = model.make_optimizer(1e-3)
for step in range(20):
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
    """The most bytes that tensors take in three steps of a real run, and its losses."""
    done = run_command("profile", "--json", "--no-advice", "--stop", folder / "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["allocator_peak_bytes"], re.findall(r"^loss (.*)$", done.stderr, re.MULTILINE)


def test_the_pasted_lines_train_in_the_budget_with_the_same_losses(folder, capsys):
    code, plan, err = planned(capsys, "--device", "cpu", "--budget", "30MiB", "train.py")
    assert code == 0, err
    assert plan["fidelity"]["level"] == "exact" and "snugfit.apply(model, snugfit.Recipe(" in plan["diff"]
    (before, losses), (after, same) = measured(folder), measured(pasted(folder, plan))
    assert before > plan["budget_bytes"] >= after
    assert plan["as_it_is"]["total_bytes"] == pytest.approx(before, rel=0.01)
    assert plan["estimate"]["peak_allocated_bytes"] == pytest.approx(after, rel=0.01)
    assert len(losses) >= 3 and losses == same
