"""Layers that train only after the steps that were looked at."""

import pytest
from own_scripts import TRAINS, estimated, written

from snugfit.simulator.thawed_later import thawed_later

LOOP = """model = 1
for epoch in range(9):
    if epoch == 5:
        THAW
    for batch in batches:
        step()
THAW
"""


@pytest.mark.parametrize(
    "statement",
    [
        "for weight in model.parameters(): weight.requires_grad = True",
        "model.requires_grad_()",
        "model.requires_grad_(True)",
        "unfreeze(model)",
        "model.thaw_last(2)",
    ],
)
def test_lines_that_let_weights_train_are_found(statement):
    assert thawed_later(LOOP.replace("THAW", statement), (6,)) == [4, 7]


@pytest.mark.parametrize("statement", ["model.requires_grad_(False)", "weight.requires_grad = False", "print(model)"])
def test_others_are_not(statement):
    assert thawed_later(LOOP.replace("THAW", statement), (6,)) == []


FROZEN = """
model[0].requires_grad_(False)
data = torch.utils.data.TensorDataset(torch.randn(640, 32), torch.arange(640) % 4)
for epoch in range(50):
    if epoch == 10:
        model[0].requires_grad_(True)
    for x, y in torch.utils.data.DataLoader(data, batch_size=64):
        nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_the_estimate_says_what_does_not_train_yet(tmp_path, capsys):
    _, found, err = estimated(capsys, written(tmp_path, TRAINS + FROZEN))
    line = (TRAINS + FROZEN).splitlines().index("        model[0].requires_grad_(True)") + 1
    assert found is not None and "8448 parameters do not train in the steps that were looked at" in err
    assert f"train later (line {line})" in " ".join(err.split())
    never = FROZEN.replace("requires_grad_(True)", "eval()")
    assert "do not train" not in estimated(capsys, written(tmp_path, TRAINS + never))[2]
    at_once = FROZEN.replace("requires_grad_(False)", "train()")
    assert "do not train" not in estimated(capsys, written(tmp_path, TRAINS + at_once))[2]
