"""Pretrained weights that are not on this machine are no reason to refuse a script."""

import pytest
from own_scripts import estimated, written
from transformers import GPT2Config, GPT2LMHeadModel

HAND = """
import torch, torchvision, timm
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


COMMIT = "0123456789abcdef0123456789abcdef01234567"
OF_TRANSFORMERS = """
import torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained("own/gpt2", cache_dir="hub", dtype=torch.bfloat16).cuda()
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.zeros(2, 16, dtype=torch.long, device="cuda")
for _ in range(3):
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_of_a_model_of_the_hub_the_config_is_enough(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "hub" / "models--own--gpt2"
    config = GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=256, architectures=["GPT2LMHeadModel"])
    GPT2LMHeadModel(config).save_pretrained(folder / "snapshots" / COMMIT)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    path = written(tmp_path, OF_TRANSFORMERS)
    code, whole, err = estimated(capsys, path)
    assert code == 0 and "not on this machine" not in err, err
    weights = folder / "snapshots" / COMMIT / "model.safetensors"
    weights.unlink()
    code, found, err = estimated(capsys, path)
    assert code == 0 and "model.safetensors of own/gpt2 is not on this machine" in err and not weights.exists()
    assert found["peak_allocated_bytes"] == whole["peak_allocated_bytes"] and found["parameters"] == whole["parameters"]
    (weights.parent / "config.json").unlink()
    code, _, err = estimated(capsys, path)
    assert code == 2 and "What it downloads has to be there" in err and "the small files are enough" in err
