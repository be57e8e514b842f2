"""Optimizers that a script makes after the steps that were looked at."""

from own_scripts import LOOP, TRAINS, estimated, written

from snugfit.simulator.later_optimizers import later_optimizers

SCRIPT = """
def train(model, kind):
    first = Adam(model)
    if kind:
        other = SGD(model)
    for epoch in range(2):
        second = torch.optim.LBFGS(model)

def never():
    third = SGD(model)

train(model, 0)
"""


def test_those_behind_in_the_same_code_and_in_no_branch():
    assert list(later_optimizers(SCRIPT, {3, 12}, {"Adam", "SGD", "LBFGS"})) == [(7, "LBFGS")]
    assert list(later_optimizers(SCRIPT, {7, 12}, {"Adam", "SGD", "LBFGS"})) == []


def test_the_estimate_names_them(tmp_path, capsys):
    later = "optimizer = torch.optim.LBFGS(model.parameters())\n"
    _, found, err = estimated(capsys, written(tmp_path, TRAINS + LOOP + later))
    lines = len((TRAINS + LOOP).splitlines())
    assert found is not None and f"train.py:{lines + 1} makes another optimizer (LBFGS)" in err
    assert "another optimizer" not in estimated(capsys, written(tmp_path, TRAINS + LOOP))[2]


def test_those_in_a_branch_may_be_made(tmp_path, capsys):
    later = "if len(data) > 3:\n    optimizer = torch.optim.LBFGS(model.parameters())\n"
    _, _, err = estimated(capsys, written(tmp_path, TRAINS + LOOP + later))
    lines = len((TRAINS + LOOP).splitlines())
    assert f"train.py:{lines + 2} may make another optimizer (LBFGS)" in err
    chosen = TRAINS.replace("optimizer = torch.optim.", "if 1:\n    optimizer = torch.optim.")
    assert chosen != TRAINS and "another optimizer" not in estimated(capsys, written(tmp_path, chosen + LOOP))[2]


IN_TURN = """
import torch
from torch import nn
device = "cuda" if torch.cuda.is_available() else "cpu"

def train(width):
    model = nn.Linear(32, width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(9):
        model(torch.rand(8, 32, device=device)).sum().backward()
        optimizer.step()

"""


def test_trainings_in_turn_are_told(tmp_path, capsys):
    turns = IN_TURN + "for width in (8, 4096):\n    train(width)\n"
    _, found, err = estimated(capsys, written(tmp_path, turns))
    line = len(turns.splitlines()) - 1
    assert found is not None and f"the loop at {tmp_path / 'train.py'}:{line} trains from anew in each turn" in err
    assert "from anew" not in estimated(capsys, written(tmp_path, IN_TURN + "train(8)\n"))[2]
