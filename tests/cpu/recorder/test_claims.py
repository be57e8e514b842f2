"""What a recording knows of models and optimizers keeps none of them: what a script lets go of is gone."""

import pytest
from own_scripts import TRAINS, estimated, measured_bytes, written

GOES_ON = """
import copy
for epoch in range(4):
    for x, in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 32)), 16):
        model(x.to(device)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    ANEW
"""
ANEW = {
    "optimizer": "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)",
    "copies": "for _ in range(3):\n        copy.deepcopy(model)(torch.randn(4, 32, device=device))",
}


@pytest.mark.parametrize("kind", ANEW)
def test_what_is_made_anew_leaves_nothing_behind(tmp_path, capsys, kind):
    path = written(tmp_path, TRAINS + GOES_ON.replace("ANEW", ANEW[kind]))
    found = estimated(capsys, path, "--width", "65536", device="cpu")[1]
    assert found["peak_allocated_bytes"] == pytest.approx(
        measured_bytes(path, "--width", "65536", until="--steps=1000"), rel=1e-3
    )
