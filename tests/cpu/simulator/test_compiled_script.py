"""Scripts that call `torch.compile`: what is predicted is the compiled step."""

import pytest
from own_scripts import LOOP, TRAINS, estimated, unwatched_bytes, written

BLOCKS = """
import sys, torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

class Block(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.layers(x)

model = nn.Sequential(Block(), Block(), nn.Linear(512, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
compiled = {HOW}
data = torch.utils.data.TensorDataset(torch.randn(1280, 512), torch.randint(0, 10, (1280,)))
for epoch in range(2):
    model.train()
    for x, y in torch.utils.data.DataLoader(data, batch_size=512):
        loss = nn.functional.cross_entropy(compiled(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        for x, y in torch.utils.data.DataLoader(data, batch_size=512):
            print(compiled(x.to(device)).argmax(1).sum().item())
"""
WHOLE = 'torch.compile(model, backend="aot_eager_decomp_partition")'
IN_PLACE = '[block.compile(backend="aot_eager_decomp_partition") for block in model[:2]] and model'


@pytest.mark.parametrize("how", [WHOLE, IN_PLACE])
def test_it_takes_what_the_compiled_run_takes(tmp_path, capsys, monkeypatch, how):
    path = written(tmp_path, BLOCKS.replace("{HOW}", how))
    _, found, err = estimated(capsys, path, device="cpu")
    assert "left out" not in err and found["parameters"] == 4_206_602
    measured = unwatched_bytes(path)
    assert found["peak_allocated_bytes"] == pytest.approx(measured, abs=4096)
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    _, eager, _ = estimated(capsys, path, device="cpu")
    assert eager["peak_allocated_bytes"] != pytest.approx(measured, rel=0.01)


def test_on_a_card_inductor_fuses(tmp_path, capsys, monkeypatch):
    longer = BLOCKS.replace("1280", "5120").replace("batch_size=512", "batch_size=2048")
    path = written(tmp_path, longer.replace("{HOW}", "torch.compile(model)"))
    _, found, err = estimated(capsys, path)
    assert "within 8% of three published runs" in err and "left out" not in err
    assert "torchinductor" not in str(found)
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    _, eager, err = estimated(capsys, path)
    assert found["peak_allocated_bytes"] < eager["peak_allocated_bytes"]
    assert "torch.compile is left out" in err


def test_an_update_that_is_compiled_is_counted_eagerly(tmp_path, capsys):
    update = """
    loss_of = torch.compile(lambda x, y: nn.functional.cross_entropy(model(x), y), backend="aot_eager")
    update = torch.compile(optimizer.step, backend="aot_eager")
    for _ in range(5):
        loss_of(torch.randn(64, 32, device=device), torch.zeros(64, dtype=torch.long, device=device)).backward()
        update()
        optimizer.zero_grad()
    """
    _, found, err = estimated(capsys, written(tmp_path, TRAINS + update.replace("\n    ", "\n")), device="cpu")
    assert "left out of the optimizer's update" in err and found["parameters"] == 9476
    assert "graph breaks" not in err


OWN_UPDATE = """
import torch
from torch import nn
device = "cuda" if torch.cuda.is_available() else "cpu"
@torch.compile(backend="aot_eager_decomp_partition", fullgraph=True, dynamic=False)
def update(weight, gradient, average, rate, decay):  # numbers of the host, which change without another compilation
    average.lerp_(gradient, 1 - decay)
    weight.add_(average / (1 - decay ** 2).sqrt(), alpha=-rate)
class Own(torch.optim.Optimizer):
    rate, decay = torch.tensor(0.0), torch.tensor(0.0)
    @torch.no_grad()
    def step(self):
        self.rate.fill_(0.1)
        self.decay.fill_(0.9)
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            if not state:
                state["average"] = torch.zeros_like(weight)
            update(weight, weight.grad, state["average"], self.rate, self.decay)
model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(9)]).to(device)
optimizer = Own(model.parameters(), {})
for _ in range(4):
    model(torch.randn(16, 512, device=device)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_numbers_of_the_host_compile_once(tmp_path, capsys):
    """Eighteen weights of two shapes: a third compilation of each would reach torch's limit and end the script."""
    path = written(tmp_path, OWN_UPDATE)
    _, found, err = estimated(capsys, path, device="cpu")
    assert "left out" not in err
    assert found["peak_allocated_bytes"] == pytest.approx(unwatched_bytes(path), abs=4096)
    by_inductor = OWN_UPDATE.replace('backend="aot_eager_decomp_partition", ', "")
    _, found, err = estimated(capsys, written(tmp_path, by_inductor))
    assert "left out" not in err and found["peak_allocated_bytes"] > 0


def test_what_cannot_be_compiled_is_counted_eagerly(tmp_path, capsys):
    broken = """
def first(graph, inputs):
    raise RuntimeError("no code for this processor")
model = torch.compile(model, backend=first)
"""
    _, found, err = estimated(capsys, written(tmp_path, TRAINS + broken + LOOP))
    assert "It was tried" in err and "no code for this processor" in err
    _, plain, _ = estimated(capsys, written(tmp_path, TRAINS + LOOP))
    assert found["peak_allocated_bytes"] == plain["peak_allocated_bytes"]


def test_what_was_compiled_is_found_inside_and_nothing_in_it(tmp_path, capsys):
    unwrapped = """
compiled = torch.compile(model)
while hasattr(compiled, "_orig_mod"):
    compiled = compiled._orig_mod
compiled.load_state_dict(model.state_dict())
"""
    _, found, _ = estimated(capsys, written(tmp_path, TRAINS + unwrapped + LOOP), device="cpu")
    _, plain, _ = estimated(capsys, written(tmp_path, TRAINS + LOOP), device="cpu")
    assert found["peak_allocated_bytes"] == plain["peak_allocated_bytes"]
