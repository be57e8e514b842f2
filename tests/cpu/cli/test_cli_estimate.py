"""`snugfit estimate` as a person types it. Most run in this process, where one warm worker serves them all."""

import json
import pickle
import re

import pytest
from command_line import run_command
from run_code import run_code

from snugfit.cli import main

WORDS = ["model.py:build", "--image-size", "8", "--batch-size", "16"]
MORE = """
class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        if x.sum() > 0:
            x = -x
        return self.head(x)


def picky():
    return nn.Sequential(nn.Conv2d(1, 1, 1), Picky())


def fixed_vocabulary(**arguments):
    return nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(int(torch.tensor([64.0]).item()), 10))
"""


@pytest.fixture
def there(folder, monkeypatch):
    with (folder / "model.py").open("a") as file:
        file.write(MORE)
    monkeypatch.chdir(folder)
    return folder


def document(capsys, *words):
    assert main(["estimate", *words, "--json"]) == 0
    shown = capsys.readouterr()
    return json.loads(shown.out), shown.err


def test_the_whole_command_without_torch_in_its_process(folder):
    done = run_command("estimate", *WORDS, "--device", "rtx-4090", "--json", cwd=folder, installed=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sum(found["anatomy_bytes"].values()) == found["peak_allocated_bytes"]
    assert found["devices"][0]["name"] == "rtx-4090" and found["devices"][0]["fits"]
    words = ["estimate", *map(str, WORDS), "--device", "cpu"]
    checked = run_code(
        f"""
import os, sys
from snugfit.cli import main
os.chdir({str(folder)!r})
assert main({words}) == 0
assert "torch" not in sys.modules
""",
        without_torch=True,
    )
    assert checked.returncode == 0, checked.stderr


def test_card_says_it_all(there, capsys):
    assert main(["estimate", *WORDS, "--precision", "bf16-mixed"]) == 0
    card = capsys.readouterr().out
    for words in (
        "model.py:build on cards of the table", "batch of 16 x 1 x 8 x 8", "precision=bf16-mixed", "rounding (precision)",
        "fragmentation", "CUDA's own context is not in it", "What lives at the peak", "optimizer state",
        "Largest tensors alive at the peak", "Blocks", "rtx-4090", "t4-16gb", "fits", "a step",
    ):  # fmt: skip
        assert words in card
    assert re.search(r"peak +\w+ of the \w+ step: \w+", card)


def test_recipe_file_options_and_model_arguments(there, capsys):
    (there / "recipe.yaml").write_text("microbatch_size: 4\n")
    words = [*WORDS, "--recipe", "recipe.yaml", "--device", "cpu", "--optimizer", "sgd", "--model-arg", "width=32"]
    found, _ = document(capsys, *words)
    assert found["recipe"]["microbatch_size"] == 4 and found["anatomy_bytes"]["optimizer_state"] == 0
    assert found["fidelity"]["level"] == "different"  # it has batch norm and dropout
    wider, _ = document(capsys, *words[:-1], "width=64")
    assert wider["parameters"] > found["parameters"]


def test_a_constructor_that_reads_values(there, capsys):
    found, _ = document(capsys, "model.py:fixed_vocabulary", "--image-size", "8", "--device", "cpu")
    assert found["parameters"] == 2 + 650


def test_timeline_and_snapshot_are_written(there, capsys):
    pytest.importorskip("matplotlib")
    words = [*WORDS, "--device", "rtx-4090"]
    told, said = document(capsys, *words, "--timeline", "out.html", "--snapshot", "out.pickle")
    assert "wrote out.html" in said and "wrote out.pickle" in said
    page = (there / "out.html").read_text()
    (shown,) = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])["documents"]
    assert shown["sections"]["timeline"]["events"] == told["timeline"]["events"]
    assert {"forward", "backward", "optimizer", "evaluation"} <= set(told["timeline"]["phases"])
    with (there / "out.pickle").open("rb") as file:
        assert pickle.load(file)["device_traces"]
    document(capsys, *words, "--timeline", "out.png")
    assert (there / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([*WORDS, "--device", "rtx4091"], 2, "did you mean 'rtx-4090'"),
        ([*WORDS, "--device", "local"], 2, "there is none that torch can use"),
        ([*WORDS, "--timeline", "out.pdf"], 2, ".html or .png"),
        ([*WORDS, "--timeline", "no/out.png"], 2, "Give a file in a folder that exists"),
        ([*WORDS, "--microbatch-size", "32", "--step-in-backward"], 2, "larger than the batch of 16"),
        ([*WORDS, "--seq-len", "12"], 2, "no meaning for image-classification"),
        ([*WORDS, "--task", "imageclassification"], 2, "did you mean 'image-classification'"),
        (["model.py:build"], 2, "Give --image-size"),
        (["model.py:build", "--image-size", "9"], 2, "in module '4' (Linear): RuntimeError"),
        (["model.py:raises", "--image-size", "8"], 2, "no such layer (line"),
        (["model.py:built", "--image-size", "8"], 2, "did you mean 'build'"),
        (["hf:nowhere/config.json"], 2, "does not exist"),
        (["model.py:picky", "--image-size", "8"], 5, "in module '1' at"),
    ],
)
def test_mistakes_are_one_message(there, capfd, words, code, says):
    import torch

    if "local" in words and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert main(["estimate", *words]) == code
    shown = capfd.readouterr()  # of the worker as well
    assert says in shown.err and shown.out == ""
    assert shown.err.startswith("snugfit: ") and shown.err.count("\n") == 1


def test_what_values_decide_can_be_assumed(there, capsys):
    words = ["model.py:picky", "--image-size", "8", "--batch-size", "16", "--device", "cpu", "--json"]
    assert main(["estimate", *words]) == 5
    assert "--assume branch=true" in capsys.readouterr().err
    assert main(["estimate", *words, "--assume", "branch=false", "--assume", "loss_finite"]) == 0
    answered = json.loads(capsys.readouterr().out)["answered"]
    assert any(text.startswith("assumed branch=false: a condition on values at") for text in answered)


def test_assumptions_reach_a_plan(there, capsys):
    words = [
        "model.py:picky",
        "--image-size",
        "8",
        "--batch-size",
        "16",
        "--device",
        "cpu",
        "--budget",
        "64MiB",
        "--json",
    ]
    assert main(["plan", *words]) == 5
    assert "--assume branch=true" in capsys.readouterr().err
    assert main(["plan", *words, "--assume", "branch"]) == 0
    assert any("assumed branch=true" in text for text in json.loads(capsys.readouterr().out)["estimate"]["answered"])
