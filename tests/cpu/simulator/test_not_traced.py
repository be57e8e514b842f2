"""Models that TorchScript makes, or is shown."""

import pytest
from own_scripts import LOOP, TRAINS, estimated, measured_bytes, written

SHOWN = {
    "script": "model = torch.jit.script(model)\noptimizer = torch.optim.AdamW(model.parameters())\n",
    "trace": "shown = torch.jit.trace(model, torch.zeros(2, 32, device=device))\nassert shown.graph is not None\n",
    "keywords": "torch.jit.trace(model, example_kwarg_inputs={'input': torch.zeros(2, 32, device=device)})\n",
    "function": "assert torch.jit.trace(lambda x: x + 1, (torch.zeros(2),))(torch.ones(2))[0].item() == 2\n",
    "tensorboard": "from torch.utils.tensorboard import SummaryWriter\n"
    "SummaryWriter('logs').add_graph(model, torch.zeros(2, 32, device=device))\n",
}


@pytest.mark.parametrize("way", SHOWN)
def test_a_model_is_estimated_that_is_traced(tmp_path, capsys, monkeypatch, way):
    if way == "tensorboard":
        pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, TRAINS + SHOWN[way] + LOOP)
    _, on_card, err = estimated(capsys, path)
    assert on_card is not None, err
    _, estimate, err = estimated(capsys, path, "--width", "4096", device="cpu")
    assert estimate is not None, err
    assert estimate["peak_allocated_bytes"] == pytest.approx(measured_bytes(path, "--width", "4096"), rel=0.02)
