"""What backward writes in place, in a script as elsewhere: gradients of what was selected, and sums of gradients."""

import subprocess
import sys

import pytest
import torch
from own_scripts import estimated, measured_bytes, written

LOOP = """
import torch
from torch import nn
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
body = nn.Linear(16, 256).to(device)
index = torch.randint(0, 64, (32,), device=device)
optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
for step in range(6):
    x = body(torch.randn(64, 64, 16, device=device))
    loss = (SELECTED).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "selected",
    [
        "x.max(2)[0]",
        "x[:, index]",
        "x.index_select(1, index)",
        "x.topk(8, 1)[0]",
        "x.gather(1, x.argsort(1))",
        "x.sort(1)[0]",
        "x.cummax(1)[0]",
        "x + torch.relu(x * 2)",
    ],
)
def test_a_script_is_as_large_as_it_is(tmp_path, capsys, selected):
    path = written(tmp_path, LOOP.replace("SELECTED", selected))
    _, found, err = estimated(capsys, path, device="cpu")
    assert found is not None, err
    assert found["peak_allocated_bytes"] == pytest.approx(measured_bytes(path), abs=2048)


EVERYTHING = (
    "x.max(2)[0].mean() + x[:, index].mean() + x.topk(8, 1)[0].mean() + x.gather(1, x.argsort(1)).square().mean() "
    "+ nn.functional.binary_cross_entropy_with_logits(x, torch.sigmoid(x), pos_weight=x.detach().exp())"
)


def test_a_profile_trains_as_the_script_does(tmp_path):
    """It is watched by a mode, under which torch writes elsewhere: what it would write in place is so in a profile, too."""
    keep = "torch.save(body.weight, sys.argv[1])\n"
    path = written(tmp_path, "import sys\n" + LOOP.replace("SELECTED", EVERYTHING) + keep)
    measured_bytes(path, "watched.pt", until="--steps=3")
    subprocess.run([sys.executable, path, "alone.pt"], cwd=tmp_path, check=True)
    watched, alone = (torch.load(tmp_path / name) for name in ("watched.pt", "alone.pt"))
    assert torch.equal(watched, alone)
