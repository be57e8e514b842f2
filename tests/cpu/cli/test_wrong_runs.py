"""Run directories that are broken, of another version, or read-only: one message, and nothing in them is changed."""

import errno
import shutil

import broken_things
import pytest
from command_line import MODEL_FILE, tiny_run
from read_only import refuse_writing
from wrong_lines import check, wrong

from snugfit.cli import main


@pytest.fixture(scope="module")
def good_run(tmp_path_factory):
    """A run of four steps that was stopped before it wrote its result, and that result."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "model.py").write_text(MODEL_FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = tiny_run("--max-steps", "4", "--save-every", "2", "--run-dir", "run", "--json")
        assert main([str(word) for word in words]) == 0
    (folder / "run" / "model.safetensors").unlink()
    return folder


@pytest.fixture
def run(good_run, tmp_path, monkeypatch):
    shutil.copytree(good_run, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "summary.json").unlink()
    return tmp_path / "run"


def replace(name, old, new):
    def change(run):
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new, 1))

    return change


def write(name, content):
    return lambda run: (run / name).write_bytes(content)


def edit(run, old, new):
    replace("model.py", old, new)(run.parent)


BROKEN = {
    "no YAML": (write("workload.yaml", b"{\n"), ["run/workload.yaml", "is not YAML", "field: value"]),
    "not UTF-8": (write("workload.yaml", b"\x80\x81"), ["run/workload.yaml", "is not UTF-8"]),
    "a list": (write("workload.yaml", b"- 1\n"), ["run/workload.yaml", "holds a list"]),
    "too little": (write("workload.yaml", b"model: m.py:f\n"), ["data is missing", "another version"]),
    "of a later version": (
        lambda run: (run / "workload.yaml").open("a").write("futuristic: 1\n"),
        ["'futuristic' is no field", "written by another version of snugfit", "start another run"],
    ),
    "a word for a number": (replace("workload.yaml", "samples: 96", "samples: many"), ["samples is 'many'"]),
    "a word for the rate": (replace("workload.yaml", "  lr: null", "  lr: fast"), ["lr is 'fast'", "a number"]),
    "a field of a later version": (
        lambda run: (run / "recipe.yaml").open("a").write("teleport: 1\n"),
        ["run/recipe.yaml", "'teleport' is no field"],
    ),
    "broken recipe": (write("recipe.yaml", b"x: ["), ["run/recipe.yaml", "line"]),
    "no recipe": (lambda run: (run / "recipe.yaml").unlink(), ["run/recipe.yaml", "cannot be read"]),
    "broken plan": (write("plan.json", b"\xff"), ["run/plan.json", "Remove it"]),
    "plan of another version": (write("plan.json", b'{"recipe": {}}'), ["another version", "'fallbacks'", "Remove it"]),
    "plan that is a list": (write("plan.json", b"[1]"), ["plan.json", "Remove it"]),
    "broken summary": (write("summary.json", b"{"), ["run/summary.json", "Remove it"]),
    "summary that is a list": (write("summary.json", b"[]"), ["run/summary.json", "Remove it"]),
    "summary of words": (write("summary.json", b'{"steps": "x", "steps_per_epoch": 1}'), ["steps is no whole number"]),
    "checkpoints gone": (lambda run: shutil.rmtree(run / "checkpoints"), ["had a checkpoint after step 4", "--overwrite"]),
    "another function": (replace("workload.yaml", "model.py:build", "model.py:bild"), ["'bild'", "did you mean 'build'"]),
    "model file gone": (lambda run: (run.parent / "model.py").unlink(), ["'model.py' does not exist"]),
    "another width": (
        lambda run: edit(run, "width=16", "width=8"),
        ["4.weight has shape [8, 256] and was saved with [16, 256]", "Put back what builds it", "--overwrite"],
    ),
    "another layer": (
        lambda run: edit(run, "nn.Dropout(dropout),", "nn.Linear(width, width), nn.Dropout(dropout),"),
        ["8.weight is new", "Put back what builds it"],
    ),
    "other number of classes": (
        replace("workload.yaml", "model_args: []", "model_args: [num_classes=nine]"),
        ["model.py:build"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_run_is_told_and_left_as_it_is(run, capsys, name):
    change, parts = BROKEN[name]
    change(run)
    check(wrong("train --run-dir run --resume --json", *parts), run.parent, capsys)


def test_a_model_that_computes_something_else_is_told(run, capsys):
    edit(run, "nn.ReLU(), nn.Flatten()", "nn.GELU(), nn.Flatten()")
    assert main(["train", "--run-dir", "run", "--resume"]) == 0
    assert "model.py has changed since the run in 'run' began" in capsys.readouterr().err


def test_damaged_checkpoints_are_set_aside_and_told(run, capsys):
    for path in (run / "checkpoints").glob("*.ckpt"):
        path.write_bytes(path.read_bytes()[:100])
    assert main(["train", "--run-dir", "run", "--resume"]) == 2
    err = capsys.readouterr().err
    assert "all are damaged" in err and "--overwrite" in err and "Traceback" not in err
    assert len(list((run / "checkpoints").glob("*.damaged"))) == 2


def test_one_damaged_checkpoint_costs_the_steps_since_the_other(run, capsys):
    newest = max((run / "checkpoints").glob("*.ckpt"))
    newest.write_bytes(newest.read_bytes()[:100])
    assert main(["train", "--run-dir", "run", "--resume"]) == 0
    err = capsys.readouterr().err
    assert newest.name in err and "going on after step 2 of 4" in err


CHANGES = [
    wrong("train --run-dir run --resume --batch-size 3", "batch_size is 3; the run has 16", "start another run"),
    wrong("train --run-dir run --resume --lr 1", "lr is 1.0", "What may change here"),
    wrong("train --run-dir run --resume --precision bf16-true", "precision is 'bf16-true'; the run has 'fp32'"),
    wrong("train --run-dir run --resume --data digits", "data is 'digits'; the run has 'random'"),
    wrong("train model.py:raises --run-dir run --resume", "model is 'model.py:raises'"),
    wrong("train --run-dir run --resume --lr 1 --data digits --seed 3", "3 problems"),
    wrong("train model.py:build --data digits --run-dir run", "already holds a run", "--overwrite"),
    wrong("train --run-dir run --resume --overwrite", "give one of them"),
    wrong("train --run-dir run --resume --budget 1GiB", "planned for no budget", "--recipe FILE", "start another run"),
    wrong("train --run-dir run --resume --recipe absent.yaml", "absent.yaml"),
]


@pytest.mark.parametrize("line", CHANGES, ids=lambda line: line.words)
def test_another_run_is_not_made_of_it(run, capsys, line):
    check(line, run.parent, capsys)


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_resume_where_nothing_can_be_written(run, capsys, monkeypatch, number):
    refuse_writing(monkeypatch, run, number)
    check(wrong("train --run-dir run --resume --json", "'run'", "cannot be written", "copy it"), run.parent, capsys)


def test_the_whole_run_goes_on(run, capsys):
    assert main(["train", "--run-dir", "run", "--resume"]) == 0
    err = capsys.readouterr().err
    assert "going on after step 4 of 4" in err and "has changed" not in err


def test_listing_sees_every_change(tmp_path):
    broken_things.make_folder(tmp_path)
    before = broken_things.listing(tmp_path)
    (tmp_path / "llama" / "new").write_text("x")
    assert broken_things.listing(tmp_path) != before
