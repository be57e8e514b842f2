"""Scripts that read tensors from files: weights, checkpoints to go on from, data that was prepared."""

import pickle
import textwrap
from pathlib import Path

import pytest
import torch
from own_scripts import LOOP, TRAINS, estimated, measured_bytes, written
from safetensors import safe_open
from safetensors.torch import save_file

from snugfit.simulator import stored_tensors

LOOKS = "lambda storage, place: storage"
MOVES = 'lambda storage, place: storage.cuda(0) if device.type == "cuda" else storage'


def model():
    return torch.nn.Sequential(torch.nn.Linear(32, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 4))


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = model()
    optimizer = torch.optim.AdamW(first.parameters())
    first(torch.rand(2, 32)).sum().backward()
    optimizer.step()
    weights = first.state_dict()
    torch.save({"model": weights, "optimizer": optimizer.state_dict(), "step": 7}, "whole.pt")
    torch.save({"model": weights}, "old.pt", _use_new_zipfile_serialization=False)
    torch.save(first, "object.pt")
    save_file(weights, "model.safetensors")
    labels = torch.arange(4096) % 4
    Path("data.pkl").write_bytes(pickle.dumps({"x": torch.rand(4096, 32), "labels": labels}))
    torch.save({"x": torch.rand(8192, 32)[:4096], "labels": labels}, "data.pt")
    return tmp_path


def peak(capsys, folder, lines, device):
    path = written(folder, TRAINS + textwrap.dedent(lines) + LOOP)
    _, estimate, err = estimated(capsys, path, "--width", "4096", device=device)
    assert estimate is not None, err
    return estimate["peak_allocated_bytes"]


@pytest.mark.parametrize("place", ["None", '"cpu"', "device", '{"cpu": str(device)}', LOOKS, MOVES])
def test_training_goes_on_from_a_file(files, capsys, place):
    lines = f"""
    state = torch.load("whole.pt", map_location={place})
    assert state["step"] == 7
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    """
    path = written(files, TRAINS + textwrap.dedent(lines) + LOOP)
    found = peak(capsys, files, lines, "cpu")
    assert found == pytest.approx(measured_bytes(path, "--width", "4096"), rel=0.01)
    weights = sum(one.nbytes for one in model().parameters())
    more = peak(capsys, files, lines, "rtx-4090") - peak(capsys, files, "", "rtx-4090")
    on_card = place not in ("None", '"cpu"', LOOKS)
    # What is loaded to the card stays beside the model while `state` is there; moments are taken over.
    assert more == pytest.approx(weights if on_card else 0, abs=8192)


@pytest.mark.parametrize(
    "lines",
    [
        'model.load_state_dict(torch.load("old.pt", map_location=device)["model"])',
        'model.load_state_dict(torch.load("whole.pt", mmap=True, map_location="cpu", weights_only=True)["model"])',
        'model.load_state_dict(torch.load("object.pt", map_location=device, weights_only=False).state_dict())',
        """
        from safetensors.torch import load_file, load_model, safe_open
        weights = load_file("model.safetensors", device=str(device))
        assert all(weight.device.type == device.type for weight in weights.values())
        model.load_state_dict(weights)
        load_model(model, "model.safetensors", device=str(device))
        with safe_open("model.safetensors", "pt", device=0 if device.type == "cuda" else "cpu") as file:
            assert list(file.keys()) == sorted(model.state_dict()) and file.get_tensor("2.bias").device.type == device.type
            assert file.get_slice("0.weight")[:5].shape == (5, 32) and file.get_slice("0.weight").get_shape() == [4096, 32]
        """,
        """
        import os
        from safetensors.torch import load_file, load_model, save_file, save_model
        save_file(model.state_dict(), "saved.safetensors", metadata={"format": "pt"})
        save_model(model, "again.safetensors")
        assert os.path.getsize("saved.safetensors") > sum(one.nbytes for one in model.parameters())
        model.load_state_dict(load_file("saved.safetensors"))
        load_model(model, "again.safetensors", device=str(device))
        """,
        """
        import pickle
        data = pickle.load(open("data.pkl", "rb"))
        assert int(data["labels"].max()) == 3 and data["x"][:2].to(device).shape == (2, 32)
        """,
        """
        data = torch.load("data.pt", map_location=device)
        assert data["labels"][:5].tolist() == [0, 1, 2, 3, 0] and data["x"].device.type == device.type
        """,
    ],
    ids=["old", "mapped", "object", "safetensors", "saved", "pickle", "data"],
)
@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
def test_a_file_is_read(files, capsys, lines, device):
    assert peak(capsys, files, lines, device) > 0


def test_a_file_of_a_card_is_loaded_there(files, capsys, monkeypatch):
    with monkeypatch.context() as card:  # a card would write this word into the file
        card.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save({"x": torch.rand(4096, 32)}, "card.pt")
    lines = 'held = torch.load("card.pt"); assert held["x"].device.type == "cuda"'
    more = peak(capsys, files, lines, "rtx-4090") - peak(capsys, files, "", "rtx-4090")
    assert more == 4096 * 32 * 4
    code, estimate, err = estimated(capsys, written(files, TRAINS + lines + "\n" + LOOP), device="cpu")
    assert code == 2 and estimate is None and "map_location='cpu' reads them" in err


def test_a_file_that_is_saved_is_one_of_safetensors(tmp_path):
    kinds = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "uint16")
    kinds += ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "complex64")
    tensors = {kind: torch.zeros(2, 3, dtype=getattr(torch, kind)) for kind in kinds} | {"one": torch.zeros(())}
    stored_tensors.save_file(tensors, tmp_path / "held.safetensors", {"format": "pt"})
    with safe_open(tmp_path / "held.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"} and set(file.keys()) == set(tensors)
        read = {name: file.get_tensor(name) for name in tensors}
    assert all(read[name].dtype == one.dtype and read[name].shape == one.shape for name, one in tensors.items())
