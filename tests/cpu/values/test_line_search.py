"""LBFGS is predicted as it takes one batch; where batches change, what may come on top is two vectors."""

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
    ("settings", "run", "vectors"),
    [
        ({"lr": 0.1, "history_size": 3}, {**BENT, "growth": 1}, 0),
        ({"lr": 0.1, "history_size": 3}, BENT, 2),
        ({"lr": 0.1, "history_size": 14}, BENT, 2),
        ({"history_size": 3, "line_search_fn": "strong_wolfe"}, SEARCHED, 2),
    ],
)
def test_steps_on_new_batches_take_what_is_predicted_and_two_vectors(settings, run, vectors, tmp_path, capfd):
    path = written(tmp_path, SCRIPT.format(settings=settings, **run))
    _, estimate, err = estimated(capfd, path, device="cpu")
    assert estimate is not None, err
    assert any("LBFGS was taken to go on" in said for said in estimate["answered"])
    more = vectors * (2 * 64 * 1024 + 1024 + 64) * 4
    measured = measured_bytes(path, until="--steps=40")
    assert estimate["peak_allocated_bytes"] + more == pytest.approx(measured, rel=0.001)


@pytest.mark.parametrize(
    ("settings", "calls"), [({"max_iter": 4}, 4), ({"max_iter": 20, "max_eval": 3}, 7), ({"max_iter": 1}, 12)]
)
def test_calls_until_the_history_is_full(settings, calls):
    assert calls_until_full(torch.optim.LBFGS(nn.Linear(2, 2).parameters(), history_size=10, **settings)) == calls
