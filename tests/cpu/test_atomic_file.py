"""The final weights load into plain models, tied tensors included."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from snugfit.atomic_file import save_model


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


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    import safetensors
    import safetensors.torch

    save_model(tmp_path / "m", {"a": torch.ones(2)})

    def no_room(*_, **__):
        raise safetensors.SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", no_room)
    with pytest.raises(OSError, match="No space left"):
        save_model(tmp_path / "m", {"a": torch.zeros(2)})
    monkeypatch.undo()
    assert names_in(tmp_path) == ["m"]
    assert torch.equal(load_file(tmp_path / "m")["a"], torch.ones(2))
