"""`snugfit train` on text, from the command to a folder that transformers loads; and bad input of text."""

import json
from pathlib import Path

import pytest
import torch
from command_line import run_command
from safetensors.torch import load_file

pytest.importorskip("transformers")
from text_models import BERT, LLAMA, OPT, build, config_file

from snugfit.cli import main

MODEL_FILE = """
import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.words, self.head = nn.Embedding(259, 8), nn.Linear(8, num_classes)

    def forward(self, input_ids, attention_mask, labels=None):
        logits = self.head(self.words(input_ids).mean(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def reader(num_classes=6):
    return Reader(num_classes)

"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config_file(tmp_path, BERT, "bert")
    config_file(tmp_path, LLAMA, "llama")
    config_file(tmp_path, OPT, "opt")
    (tmp_path / "model.py").write_text(MODEL_FILE)
    return tmp_path


def train(capsys, *words):
    code = main(["train", *map(str, words), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out)


CLASSIFY = ("hf:bert/config.json", "--data", "topics", "--samples", "60", "--batch-size", "16", "--seq-len", "48")
PREDICT = ("hf:llama/config.json", "--data", "prose", "--samples", "64", "--batch-size", "8", "--seq-len", "32")


def test_classifier_from_command_to_transformers_and_on(here, capsys):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    result = train(capsys, *CLASSIFY, "--epochs", "2", "--run-dir", "run", "--microbatch-size", "5")
    assert result["workload"]["task"] == "text-classification"
    assert result["main_metric"] == {"name": "accuracy", "higher_is_better": True}
    assert result["metrics"].keys() == {
        *("train_loss", "validation_loss", "validation_accuracy", "test_loss", "test_accuracy")
    }
    loaded, info = AutoModelForSequenceClassification.from_pretrained("run", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and loaded.config.num_labels == 6
    assert loaded.config.id2label[1] == "debugger" and loaded.config.use_cache is not False
    tokenizer = AutoTokenizer.from_pretrained("run")
    # What another run in this directory would have to remove.
    assert {"config.json", "tokenizer_config.json"} <= set(json.loads(Path("run/.beside").read_text()))
    assert loaded(**tokenizer("the debugger stops", return_tensors="pt")).logits.shape == (1, 6)
    weights = load_file("run/model.safetensors")
    # The folder is a pretrained model now: training goes on from its weights, head included.
    again = train(capsys, "hf:run", *CLASSIFY[1:], "--max-steps", "1", "--lr", "0", "--run-dir", "on")
    assert all(torch.equal(value, weights[name]) for name, value in load_file("on/model.safetensors").items())
    assert again["metrics"]["test_loss"] == pytest.approx(result["metrics"]["test_loss"], rel=1e-6)
    # Named as a file, for a config that is somewhere else.
    other = ("hf:bert/config.json", *CLASSIFY[1:], "--weights", "run/model.safetensors", "--init", "meta")
    train(capsys, *other, "--max-steps", "1", "--lr", "0", "--run-dir", "file")
    assert all(torch.equal(value, weights[name]) for name, value in load_file("file/model.safetensors").items())
    # Its config by itself is a model of the same shape with random weights.
    train(capsys, "hf:run/config.json", *CLASSIFY[1:], "--max-steps", "1", "--lr", "0", "--run-dir", "fresh")
    fresh = load_file("fresh/model.safetensors")
    assert not torch.equal(fresh["classifier.weight"], weights["classifier.weight"])


@pytest.mark.parametrize("packing", [(), ("--packing",)], ids=["padded", "packed"])
def test_language_model_from_command_to_transformers(here, capsys, packing):
    from transformers import AutoModelForCausalLM

    result = train(capsys, *PREDICT, *packing, "--epochs", "2", "--run-dir", "run", "--lr", "1e-3")
    assert result["workload"]["task"] == "causal-lm"
    assert result["main_metric"] == {"name": "perplexity", "higher_is_better": False}
    metrics = result["metrics"]
    assert metrics["test_perplexity"] == pytest.approx(torch.tensor(metrics["test_loss"]).exp().item(), rel=1e-5)
    rows = [json.loads(line) for line in (here / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == 16 and losses[0] > 5.3 and losses[-1] < losses[0] - 0.2
    model = AutoModelForCausalLM.from_pretrained("run")
    assert all(
        torch.equal(value, model.state_dict()[name]) for name, value in load_file("run/model.safetensors").items()
    )


@pytest.mark.parametrize("command", [CLASSIFY, (*PREDICT, "--packing")], ids=["classifier", "packed language model"])
def test_a_run_that_goes_on_is_bitwise_one_that_never_stopped(here, capsys, command):
    """BERT has dropout, so the random state counts too; the two parts load with and without workers."""
    train(capsys, *command, "--max-steps", "7", "--run-dir", "whole")
    train(capsys, *command, "--max-steps", "3", "--run-dir", "parts", "--workers", "1")
    train(capsys, "--run-dir", "parts", "--resume", "--max-steps", "7")
    whole, parts = (load_file(f"{name}/model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_tables_prompts_and_other_precision(here, capsys):
    rows = [{"question": f"what is {n}?", "answer": "odd" if n % 2 else "even", "kind": n % 2} for n in range(60)]
    (here / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ("--data", "jsonl:a.jsonl", "--batch-size", "8", "--max-steps", "2")
    result = train(capsys, "hf:llama/config.json", *words, "--precision", "bf16-true", "--init", "device")
    assert result["run_dir"] == "runs/llama-jsonl-a.jsonl"
    result = train(
        *(capsys, "hf:llama/config.json", *words, "--task", "text-classification"),
        *("--text-column", "question", "--label-column", "kind", "--checkpoint", "all"),
    )
    assert result["metrics"]["test_accuracy"] is not None


def test_models_of_ones_own_and_random_tokens(here, capsys):
    words = ("--batch-size", "8", "--max-steps", "2", "--samples", "40", "--task", "text-classification")
    train(capsys, "model.py:reader", "--data", "topics", *words, "--seq-len", "300")
    result = train(capsys, "hf:bert/config.json", "--data", "random", *words)
    assert result["workload"]["settings"]["max_steps"] == 2


def test_as_typed(here):
    ended = run_command("train", *CLASSIFY, "--max-steps", "2", cwd=here)
    assert ended.returncode == 0, ended.stderr
    assert "hf:bert/config.json on topics: 2 steps of 16" in ended.stdout and "test accuracy" in ended.stdout
    assert "samples of topics are longer than 48 tokens and were cut" in ended.stderr
    assert all(line.startswith(("snugfit: ", "step ")) for line in ended.stderr.splitlines()), ended.stderr


BAD = {
    "own model with too few outputs": (
        {"model": "model.py:reader", "--model-arg": "num_classes=2", "--seq-len": "300"}, "tells 2 classes apart"
    ),
    "weights and no tokenizer": ({"model": "hf:bare"}, "has weights and no tokenizer"),
    "model that sees across samples": (
        {"model": "hf:opt/config.json", "--task": "causal-lm", "--data": "prose", "--packing": ""},
        "attend to other samples",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_one_message_and_nothing_written(here, capsys, name):
    if name == "weights and no tokenizer":
        build(BERT, classes=6).save_pretrained(here / "bare")
    changes, part = BAD[name]
    given = {
        **{"model": "hf:bert/config.json", "--task": "text-classification", "--data": "topics"},
        **{"--batch-size": "8", "--max-steps": "1", "--run-dir": "run"},
        **changes,
    }
    words = [given.pop("model")]
    for option, value in given.items():
        words += [option, value] if value else [option]
    code = main(["train", *words, "--json"])
    out, err = capsys.readouterr()
    assert code == 2, err
    assert out == "" and not (here / "run").exists()
    assert part in err
    assert "Traceback" not in err and err.splitlines()[-1].startswith("snugfit: ")
