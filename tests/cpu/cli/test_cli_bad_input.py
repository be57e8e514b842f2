"""Bad input: exit 2, one helpful message, no traceback, nothing written."""

import pytest
from command_line import run_command

from snugfit.cli import main

GOOD = {"model": "model.py:build", "--data": "random", "--batch-size": "16", "--samples": "32", "--image-size": "8"}

BAD = {
    "no model": ({"model": None}, ["MODEL must be given", "snugfit train torchvision:resnet18 --data digits"]),
    "neither": ({"model": None, "--data": None}, ["MODEL and --data must be given"]),
    "unknown library": ({"model": "torchvison:resnet18"}, ["did you mean 'torchvision:resnet18'?"]),
    "unknown torchvision model": ({"model": "torchvision:resnet19"}, ["torchvision:resnet18"]),
    "unknown timm model": ({"model": "timm:vit_tinny"}, ["unknown"]),
    "missing file": ({"model": "absent.py:build"}, ["absent.py"]),
    "missing function": ({"model": "model.py:bild"}, ["bild", "build"]),
    "function raises": ({"model": "model.py:raises"}, ["no such layer"]),
    "function returns no module": ({"model": "model.py:no_module"}, ["int"]),
    "unknown model argument": ({"--model-arg": "depht=3"}, ["depht"]),
    "model argument without value": ({"--model-arg": "width"}, ["key=value"]),
    "image too large for the model": ({"--image-size": "9"}, ["model 'model.py:build' cannot take an image of random"]),
    "fewer outputs than labels": ({"model": "model.py:two_classes", "--data": "digits"}, ["2 classes", "10"]),
    "labels out of range": ({"--model-arg": "num_classes=3", "--data": "digits"}, ["num_classes"]),
    "unknown data": ({"--data": "digit"}, ["did you mean 'digits'?"]),
    "data without its folder": ({"--data": "cifar10"}, ["cifar10:DIR"]),
    "absent data": ({"--data": "cifar10:nowhere"}, ["nowhere", "--download"]),
    "absent images": ({"--data": "imagefolder:nowhere"}, ["nowhere"]),
    "unknown task": ({"--task": "image-clasification"}, ["did you mean 'image-classification'?"]),
    "batch larger than the data": ({"--batch-size": "33"}, ["batch_size 33 is larger than the 32 training samples"]),
    "default batch larger than the data": ({"--batch-size": None}, ["batch_size 64 is larger than the 32"]),
    "microbatch larger than the batch": ({"--microbatch-size": "17"}, ["microbatch_size 17 is larger"]),
    "unknown technique": ({"--checkpoint": "evry:2"}, ["every:N"]),
    "unknown blocks": ({"--checkpoint": "layers.7"}, ["layers.7"]),
    "weights file absent": ({"--weights": "absent.safetensors"}, ["absent.safetensors"]),
    "freeze matches nothing": ({"--freeze": "backbone.*"}, ["backbone.*"]),
    "everything frozen": ({"--freeze": "*"}, ["nothing is left to train"]),
    "no CUDA": ({"--device": "cuda"}, ["torch sees no CUDA device"]),
    "warm-up longer than the run": ({"--warmup-steps": "9", "--max-steps": "3"}, ["warmup_steps is 9"]),
    "recipe file absent": ({"--recipe": "absent.yaml"}, ["absent.yaml"]),
    "recipe file with five mistakes": ({"--recipe": "bad.yaml"}, ["5 problems"]),
    "run directory under a file": ({"--run-dir": "model.py/run"}, ["cannot be written"]),
    "resume without directory": ({"--resume": ""}, ["--resume needs --run-dir"]),
    "resume of nothing": ({"--resume": "", "--run-dir": "absent"}, ["holds no run"]),
    "resume and overwrite": ({"--resume": "", "--overwrite": "", "--run-dir": "absent"}, ["give one of them"]),
    "one checkpoint kept": ({"--keep-checkpoints": "1"}, ["at least 2"]),
    "negative samples": ({"--samples": "-1"}, ["--samples: -1 is out of range"]),
}

FIVE_MISTAKES = "precision: fp23\nmicrobatch_size: -2\ncheckpoint: every:0\nworkers: -1\nno_such_field: 1\n"


def command_of(changes):
    given = {**GOOD, **changes}
    model = given.pop("model")
    words = ["train", *([] if model is None else [model])]
    for name, value in given.items():
        if value is not None:
            words += [name] if value == "" else [name, value]
    return [*words, *([] if "--json" in words else ["--json"])]


@pytest.fixture
def here(folder, monkeypatch):
    (folder / "bad.yaml").write_text(FIVE_MISTAKES)
    monkeypatch.chdir(folder)
    return folder


def contents(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")


@pytest.mark.parametrize("name", BAD)
def test_one_message_and_nothing_written(here, capsys, name):
    changes, parts = BAD[name]
    before = contents(here)
    code = main(command_of(changes))
    out, err = capsys.readouterr()
    assert code == 2, err
    assert out == ""
    for part in parts:
        assert part in err
    assert err.startswith("snugfit: ") and "Traceback" not in err
    assert contents(here) == before


def test_good_input_of_this_test_trains(here):
    assert main(command_of({})) == 0


def test_as_typed(folder):
    """The same through a real process, with and without torch being loaded for it."""
    (folder / "bad.yaml").write_text(FIVE_MISTAKES)
    for name in ("recipe file with five mistakes", "unknown torchvision model"):
        changes, parts = BAD[name]
        before = contents(folder)
        ended = run_command(*command_of(changes), cwd=folder)
        assert ended.returncode == 2 and ended.stdout == ""
        assert all(part in ended.stderr for part in parts) and "Traceback" not in ended.stderr
        assert contents(folder) == before
