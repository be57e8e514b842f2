"""Averages of weights that a script begins behind some epochs are waited for."""

import pytest
from own_scripts import estimated, unwatched_bytes, written

SWA = """
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 2048)).to(device)
average = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(320, 256)), batch_size=64)
for epoch in range(FIRST + 3):
    for (x,) in loader:
        model(x.to(device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if epoch >= FIRST:
        average.update_parameters(model)
"""


def test_updates_of_a_later_epoch_are_seen(tmp_path, capsys):
    path = written(tmp_path, SWA.replace("FIRST", "1"))
    _, found, err = estimated(capsys, path, device="cpu")
    assert "average of weights" not in err
    assert found["peak_allocated_bytes"] == pytest.approx(unwatched_bytes(path), abs=4096)


def test_updates_that_come_too_late_are_named(tmp_path, capsys):
    _, found, err = estimated(capsys, written(tmp_path, SWA.replace("FIRST", "50")), device="cpu")
    assert found["steps"] <= 12 and "an average of weights (AveragedModel) is updated later" in err
