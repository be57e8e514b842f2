"""Models that a script pickles, and weights that it copies by `copy.copy`."""

import pytest
from own_scripts import LOOP, TRAINS, estimated, measured_bytes, written

PICKLED = """
import pickle
other = pickle.loads(pickle.dumps(model))
assert isinstance(other[0].weight, nn.Parameter) and other[0].weight.requires_grad
"""
COPIED = """
import copy
held = [copy.copy(weight) for weight in model.parameters()]
assert all(isinstance(one, nn.Parameter) for one in held)
"""


@pytest.mark.parametrize("more", [PICKLED, COPIED], ids=["pickled", "copied"])
def test_they_take_what_real_ones_take(tmp_path, capsys, more):
    path = written(
        tmp_path, TRAINS.replace("default=256", "default=65536") + more + LOOP.replace("range(50)", "range(1)")
    )
    _, found, _ = estimated(capsys, path, device="cpu")
    assert found["peak_allocated_bytes"] == pytest.approx(measured_bytes(path), abs=65536)
