"""Pretrained weights that are not on this machine are no reason to refuse a script."""

import pytest
from own_scripts import estimated, written

HAND = """
import os, torch, torchvision, timm
torch.hub.set_dir("nowhere")
model = MODEL.cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(2, 3, 224, 224, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

"""
OF_HUB = "torch.hub.load_state_dict_from_url('https://127.0.0.1/own.pth')"


@pytest.mark.parametrize(
    "pretrained, plain, name",
    [
        ("torchvision.models.resnet18(weights='DEFAULT')", "torchvision.models.resnet18()", "resnet18-f37072fd.pth"),
        (
            "timm.create_model('tinynet_e', pretrained=True, num_classes=10, in_chans=3)",
            "timm.create_model('tinynet_e', num_classes=10)",
            "model.safetensors of timm/tinynet_e.in1k",
        ),
    ],
    ids=["torchvision", "timm"],
)
def test_a_model_goes_without_them(tmp_path, capsys, monkeypatch, pretrained, plain, name):
    monkeypatch.chdir(tmp_path)
    code, found, err = estimated(capsys, written(tmp_path, HAND.replace("MODEL", pretrained)))
    assert code == 0 and f"{name} is not on this machine" in err, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]
    _, whole, silent = estimated(capsys, written(tmp_path, HAND.replace("MODEL", plain)))
    assert found["peak_allocated_bytes"] == whole["peak_allocated_bytes"] and "not on this machine" not in silent


def test_what_a_script_reads_of_them_itself_is_empty(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    by_hand = f"torch.nn.Linear(8, 8)\nmodel.load_state_dict({OF_HUB})\nmodel = torchvision.models.resnet18()"
    code, _, err = estimated(capsys, written(tmp_path, HAND.replace("MODEL", by_hand)))
    assert code == 0 and "own.pth is not on this machine" in err


def test_keys_that_a_model_lacks_are_still_told(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = "torch.nn.Linear(8, 8)\nmodel.load_state_dict({})\nmodel = torchvision.models.resnet18()"
    code, _, err = estimated(capsys, written(tmp_path, HAND.replace("MODEL", wrong)))
    assert code == 2 and "Missing key(s)" in err
