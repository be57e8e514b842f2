"""`snugfit` on models of transformers that take images: trained, loaded again by transformers, and what is refused."""

import json

import pytest

from snugfit.cli import main

transformers = pytest.importorskip("transformers")
pytest.importorskip("sklearn")

VIT = {
    "model_type": "vit", "architectures": ["ViTForMaskedImageModeling"], "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4, "num_channels": 1,
}  # fmt: skip
T5 = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 16, "d_kv": 8, "d_ff": 32,
    "num_layers": 1, "num_heads": 2, "vocab_size": 50, "decoder_start_token_id": 0,
}  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, config in (("vit", VIT), ("t5", T5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_images_are_trained_and_loaded_again(here, capsys):
    words = (
        "hf:vit/config.json",
        "--data",
        "digits",
        "--samples",
        "128",
        "--max-steps",
        "3",
        "--run-dir",
        "run",
        "--json",
    )
    assert main(["train", *words]) == 0, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)
    assert "accuracy" in str(found["metrics"])
    loaded = transformers.AutoModelForImageClassification.from_pretrained(here / "run")
    assert loaded.config.num_labels == 10


def test_an_estimate_says_what_was_decided(here, capsys):
    assert (
        main(["estimate", "hf:t5/config.json", "--batch-size", "2", "--seq-len", "8", "--device", "cpu", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["peak_allocated_bytes"] > 0
    assert "the task is seq2seq-lm, after the config" in found["answered"]
