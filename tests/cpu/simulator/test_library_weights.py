"""Weights that are of a library's own class: quantised ones of bitsandbytes, lazy ones of torch."""

import pytest
from own_scripts import estimated, measured_bytes, written

LAZY = """
import torch
from torch import nn
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.LazyConv2d(16, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)).to(device)
model(torch.randn(2, 3, 32, 32, device=device))
assert type(model[4].weight).__name__ != "UninitializedParameter" and isinstance(model[4].weight, nn.Parameter)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for _ in range(6):
    loss = model(torch.randn(8, 3, 32, 32, device=device)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
QUANTISED = """
import copy
import torch
import bitsandbytes as bnb
from torch import nn
device = "cuda" if torch.cuda.is_available() else "cpu"


class Adapted(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.down, self.up = layer, nn.Linear(256, 8), nn.Linear(8, 256)

    def forward(self, x):
        return x + self.layer(x).float() + self.up(self.down(x))


layers = [{layer} for _ in range(3)]
model = nn.Sequential(*map(Adapted, layers)).to(device)
assert all(type(one.layer.weight) is not nn.Parameter and one.layer.weight.device.type == device for one in model)
trained = [weight for weight in model.parameters() if weight.requires_grad]
optimizer = torch.optim.AdamW(trained)
for _ in range(6):
    loss = model(torch.randn(64, 256, device=device)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FOUR = 'bnb.nn.Linear4bit(256, 256, compute_dtype=torch.bfloat16, quant_type="nf4", compress_statistics=True)'
EIGHT = "bnb.nn.Linear8bitLt(256, 256, has_fp16_weights=False, threshold=6.0)"


def test_lazy_modules_of_a_script(tmp_path, capsys):
    script = written(tmp_path, LAZY)
    code, found, err = estimated(capsys, script, device="cpu")
    assert code == 0, err
    assert found["peak_allocated_bytes"] == pytest.approx(measured_bytes(script), rel=0.001)
    code, found, err = estimated(capsys, script)
    assert code == 0, err
    weights = 16 * 3 * 3 * 3 + 16 + 2 * 16 + 10 * 16 * 30 * 30 + 10
    for kind in ("weights", "optimizer_state"):
        assert found["anatomy_bytes"][kind] == pytest.approx(4 * weights, rel=0.01)


@pytest.mark.parametrize(("layer", "bits"), [(FOUR, 4.127), (EIGHT, 8.125)], ids=["four bits", "eight bits"])
def test_quantised_layers_of_a_script(tmp_path, capsys, layer, bits):
    pytest.importorskip("bitsandbytes")
    script = written(tmp_path, QUANTISED.replace("{layer}", layer))
    code, found, err = estimated(capsys, script, device="cpu")
    assert code == 0, err
    assert found["peak_allocated_bytes"] == pytest.approx(measured_bytes(script), rel=0.01)
    code, found, err = estimated(capsys, script)
    assert code == 0, err
    weights = 3 * (256 * 256 * bits / 8 + 4 * (256 + 2 * 8 * 256 + 8 + 256))
    assert found["anatomy_bytes"]["weights"] == pytest.approx(weights, rel=0.05)
    assert ("hold no outliers" in " ".join(err.split())) == (layer is EIGHT)
