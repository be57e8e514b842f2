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


SAYS_CUDA = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
device = "cuda" if torch.cuda.is_available() else "cpu"

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient.to(device) + torch.ones(1, device=device)

body, places = nn.Linear(64, 64).to(device), nn.Embedding(32, 64).to(device)

def block(x):
    return body(x + places(torch.arange(len(x), device=device)))

def scaled(parameter):
    parameter.grad.mul_(torch.tensor(0.5, device=device))

body.weight.register_hook(lambda gradient: gradient * torch.ones(1).to(device))
body.bias.register_post_accumulate_grad_hook(scaled)
optimizer = torch.optim.SGD([*body.parameters(), *places.parameters()])
for step in range(4):
    x = torch.randn(32, 64, device=device, requires_grad=True)
    loss = Doubled.apply(checkpoint(block, x, use_reentrant=REENTRANT)).mean()
    BACKWARD
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("reentrant", ["True", "False"])
@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
def test_what_runs_within_backward_names_its_device(tmp_path, capsys, device, reentrant):
    text = SAYS_CUDA.replace("REENTRANT", reentrant)
    path = written(tmp_path, text.replace("BACKWARD", "loss.backward()"))
    code, _, err = estimated(capsys, path, device=device)
    assert code == 0, err
    if reentrant == "False":
        one = "body.weight.grad, = torch.autograd.grad(loss, [body.weight])"
        code, _, err = estimated(capsys, written(tmp_path, text.replace("BACKWARD", one)), device=device)
        assert code == 0, err
