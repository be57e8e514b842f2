"""LBFGS is predicted by the most that real steps take, whose losses change with the batch and whose lines are searched."""

import pytest
import torch
from own_scripts import estimated, measured_bytes, written
from torch import nn

from snugfit.values.line_search import calls_until_full

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 1024), nn.Tanh(), nn.Linear(1024, 64)).to(device)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, **{settings})
for step in range({steps}):
    x = torch.randn({rows}, 64, device=device)
    y = x.sin() + {noise} * torch.randn({rows}, 64, device=device)
    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y) * {growth} ** step
        loss.backward()
        return loss
    optimizer.step(closure)
"""
BENT = {"steps": 8, "rows": 64, "noise": 0, "growth": 4}
"""A loss so much steeper in the next step that the first iteration of that is not added to the history."""
SEARCHED = {"steps": 40, "rows": 16, "noise": 1, "growth": 1}
"""Batches so different that lines are searched, also where an iteration was not added."""


@pytest.mark.parametrize(
    ("settings", "run"),
    [
        ({"lr": 0.1, "history_size": 3}, BENT),
        ({"lr": 0.1, "history_size": 14}, BENT),
        ({"history_size": 3, "line_search_fn": "strong_wolfe"}, SEARCHED),
    ],
)
def test_steps_on_new_batches_take_what_is_predicted(settings, run, tmp_path, capfd):
    path = written(tmp_path, SCRIPT.format(settings=settings, **run))
    _, estimate, err = estimated(capfd, path, device="cpu")
    assert estimate is not None, err
    assert any("LBFGS was taken to go on" in said for said in estimate["answered"])
    assert estimate["peak_allocated_bytes"] == pytest.approx(measured_bytes(path, until="--steps=40"), rel=0.001)


@pytest.mark.parametrize(
    ("settings", "calls"), [({"max_iter": 4}, 4), ({"max_iter": 20, "max_eval": 3}, 7), ({"max_iter": 1}, 12)]
)
def test_calls_until_the_history_is_full(settings, calls):
    assert calls_until_full(torch.optim.LBFGS(nn.Linear(2, 2).parameters(), history_size=10, **settings)) == calls
