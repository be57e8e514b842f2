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
