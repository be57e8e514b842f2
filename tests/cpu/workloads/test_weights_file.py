"""Weights that are written load into plain models, tied tensors included, and are whole or absent."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from snugfit.errors import InputError
from snugfit.workloads.stored_weights import DTYPES, StoredWeights
from snugfit.workloads.weights_file import layout_of, save_model, save_tensors


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 7)
        self.head.weight = self.embedding.weight
        self.register_buffer("slice", torch.arange(12.0).reshape(3, 4)[:, 1:3])
        self.register_buffer("empty", torch.zeros(0, 3))


def test_tied_sliced_and_empty_tensors_load_strictly(tmp_path):
    model = Tied()
    save_model(tmp_path / "model.safetensors", model.state_dict())
    assert names_in(tmp_path) == ["model.safetensors"]
    other = Tied()
    other.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    assert other.head.weight is other.embedding.weight
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)


def test_channels_last_and_bfloat16(tmp_path):
    model = nn.Conv2d(3, 4, 3).to(torch.bfloat16, memory_format=torch.channels_last)
    save_model(tmp_path / "m", model.state_dict())
    found = load_file(tmp_path / "m")
    assert found["weight"].dtype == torch.bfloat16
    assert torch.equal(found["weight"], model.weight)


def test_failed_write_leaves_the_old_file(tmp_path):
    save_model(tmp_path / "m", {"a": torch.ones(2), "b": torch.ones(3)})

    def cut_short():
        yield "a", torch.zeros(2)
        raise OSError(28, "No space left on device")

    layout = layout_of({"a": torch.zeros(2), "b": torch.zeros(3)})
    with pytest.raises(OSError, match="No space left"):
        save_tensors(tmp_path / "m", layout, cut_short())
    assert names_in(tmp_path) == ["m"]
    assert torch.equal(load_file(tmp_path / "m")["a"], torch.ones(2))


def test_tensors_of_every_dtype_come_in_any_order_and_are_read_back(tmp_path):
    state = {
        f"{dtype}".removeprefix("torch."): torch.arange(6).reshape(2, 3).to(dtype)
        for dtype in (*DTYPES.values(),)
        if dtype not in (torch.float8_e4m3fn, torch.float8_e5m2)
    }
    state |= {"scalar": torch.tensor(3.5), "eight": torch.arange(3.0).to(torch.float8_e4m3fn)}
    file = tmp_path / "m.safetensors"
    save_tensors(file, layout_of(state), reversed(state.items()))
    stored = StoredWeights(file)  # the library checks the table of contents here
    for name, value in state.items():
        found = stored.read(name)
        assert found.dtype == value.dtype and found.shape == value.shape
        assert torch.equal(found.reshape(-1).view(torch.uint8), value.reshape(-1).view(torch.uint8))
    with safe_open(file, framework="pt") as theirs:
        assert theirs.metadata() == {"format": "pt"} and torch.equal(theirs.get_tensor("float32"), state["float32"])


def test_what_no_file_can_hold_is_named(tmp_path):
    for value, words in (
        ({"beta": 2}, "'m._extra_state' .* is a dict"),
        (torch.zeros(2, dtype=torch.cdouble), "complex128"),
    ):
        with pytest.raises(InputError, match=words):
            save_model(tmp_path / "m", {"w": torch.ones(2), "m._extra_state": value})
    assert not list(tmp_path.iterdir())
