"""What an image model of transformers was fine-tuned on is what it calls things afterwards."""

import json

import pytest

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("transformers")

from snugfit.cli import main  # noqa: E402

VIT = {
    "model_type": "vit",
    "architectures": ["ViTForImageClassification"],
    **{"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8},
    **{"image_size": 8, "patch_size": 4},
}


def test_names_are_those_of_the_folders_at_the_start_and_of_a_trained_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("bird", "cat", "dog")):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for shade in range(10):
            Image.new("L", (8, 8), number * 80 + shade).save(tmp_path / "pets" / name / f"{shade}.png")
    (tmp_path / "config.json").write_text(json.dumps(VIT))
    words = ["--data", "imagefolder:pets", "--batch-size", "8", "--max-steps", "1"]
    assert main(["train", "hf:config.json", *words, "--run-dir", "first"]) == 0
    written = tmp_path / "first" / "config.json"
    found = json.loads(written.read_text())
    assert found["id2label"] == {"0": "bird", "1": "cat", "2": "dog"}
    written.write_text(json.dumps({**found, "id2label": {"0": "dog", "1": "cat", "2": "bird"}}))
    assert main(["train", "hf:first", *words, "--run-dir", "second"]) == 0
    again = json.loads((tmp_path / "second" / "config.json").read_text())
    assert (again["id2label"], again["label2id"]) == (found["id2label"], {"bird": 0, "cat": 1, "dog": 2})
