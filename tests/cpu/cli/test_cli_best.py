"""`--patience` and `--keep-best` as typed and from Python: what is printed, what is left, and going on."""

import json

import pytest
import torch
from command_line import MODEL_FILE, tiny_run
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

import snugfit
from snugfit.cli import main
from snugfit.errors import InputError

RUN = tiny_run("--lr", "0.02", "--eval-every", "2", "--max-steps", "40", "--seed", "2")


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(MODEL_FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *words, code=0):
    assert main([str(word) for word in words]) == code
    return capsys.readouterr()


def test_as_typed_and_going_on_with_more_patience(here, capsys):
    judged = ("--keep-best", "accuracy", "--patience")
    document = json.loads(run(capsys, *RUN, *judged, 2, "--run-dir", "run", "--json").out)
    best = document["best"]
    assert document["stopped_early"] and document["steps"] == best["step"] + 4 < 40
    assert best.keys() == {"metric", "value", "step", "evaluations_since", "saved"} and best["saved"]
    assert best["metric"] == "validation_accuracy"
    assert document["metrics"]["validation_accuracy"] == best["value"]
    # The same request is finished, and says so; more patience goes on to where it would have brought the run at once.
    card, said = run(capsys, "train", "--run-dir", "run", "--resume")
    assert "is finished" in said
    assert f"after step {best['step']}; its weights are saved; stopped after 2 evaluations" in " ".join(card.split())
    more = json.loads(run(capsys, "train", "--run-dir", "run", "--resume", "--patience", 5, "--json").out)
    whole = json.loads(run(capsys, *RUN, *judged, 5, "--run-dir", "whole", "--json").out)
    assert more["steps"] == whole["steps"] > document["steps"] and more["best"] == whole["best"]
    one, other = load_file("run/model.safetensors"), load_file("whole/model.safetensors")
    assert all(torch.equal(one[name], value) for name, value in other.items())
    for words, told in (
        (["--keep-best", "loss"], "keep_best is 'loss'; the run has 'accuracy'"),
        (["--no-evaluate"], "patience goes by evaluations"),
    ):
        assert told in run(capsys, "train", "--run-dir", "run", "--resume", *words, code=2).err
    # Another run in its place takes nothing over.
    run(capsys, *RUN, "--max-steps", 2, "--run-dir", "run", "--overwrite")
    assert not (here / "run" / "best").exists()


def test_from_python_the_model_is_the_best(here):
    torch.manual_seed(0)
    images, labels = torch.randn(96, 1, 8, 8), torch.randint(0, 10, (96,))
    data = TensorDataset(images[:64], labels[:64]), TensorDataset(images[64:], labels[64:])
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    given = {"loss": nn.CrossEntropyLoss(), "batch_size": 16, "epochs": 20, "lr": 0.02, "progress": False}
    result = snugfit.train(model, data, patience=3, keep_best="loss", run_dir="run", **given)
    assert result.document["stopped_early"] and result.steps < 80
    assert result.model is model and result.metrics["validation_loss"] == result.document["best"]["value"]
    found = nn.functional.cross_entropy(model.eval()(images[64:]), labels[64:])
    assert found.item() == pytest.approx(result.document["best"]["value"], rel=1e-5)
    stored = load_file("run/model.safetensors")
    assert all(torch.equal(stored[name], value) for name, value in model.state_dict().items())
    with pytest.raises(InputError, match="patience and keep_best: a run is judged by"):
        snugfit.train(model, (data[0], None), patience=3, keep_best="loss", run_dir="none", **given)
    with pytest.raises(InputError, match="keep_best is 'accuracy', which training does not report; allowed: loss"):
        snugfit.train(model, data, keep_best="accuracy", run_dir="none", **given)
    assert not (here / "none").exists()
