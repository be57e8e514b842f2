"""The run directory: one run, one process, nothing half-written, rows never doubled."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from read_only import refuse_writing

from snugfit.errors import InputError, TrainingError
from snugfit.recipe import Recipe
from snugfit.runs.run_dir import RunDirectory, check_new
from snugfit.runs.run_files import holds_run
from snugfit.training.run_results import taken_in

WORKLOAD = {"model": "m.py:f", "settings": {"epochs": 2, "betas": [0.9, 0.99]}}


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_create_and_open_give_the_same_run(tmp_path):
    recipe = Recipe(precision="bf16-true", microbatch_size=4, checkpoint=("a", "b"))
    path = tmp_path / "deep" / "run"
    with RunDirectory.create(path, recipe, WORKLOAD):
        pass
    with RunDirectory.open(path) as run:
        assert run.read_recipe() == recipe
        assert run.read_workload() == WORKLOAD
        assert run.read_summary() is None
        run.write_summary({"steps": 3})
        assert run.read_summary() == {"steps": 3}


def test_existing_run_is_not_replaced_unless_asked(tmp_path):
    with RunDirectory.create(tmp_path, Recipe(), WORKLOAD) as run:
        run.log({"step": 1})
        run.write_summary({"steps": 1})
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"\(resume\).*run_dir.*\(overwrite\)"):
        RunDirectory.create(tmp_path, Recipe(), WORKLOAD)
    with RunDirectory.create(tmp_path, Recipe(inplace=True), WORKLOAD, overwrite=True) as run:
        assert run.read_metrics() == []
        assert run.read_summary() is None
        assert run.read_recipe().inplace
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_all_that_a_replaced_run_wrote_goes_and_nothing_else(tmp_path):
    def write(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    with RunDirectory.create(tmp_path, Recipe(), WORKLOAD) as run:
        run.log({"step": 1})
        with taken_in(run.path) as folder:
            for name in ("config.json", "vocab.json", "chat/template.jinja"):
                write(folder / name)
    for name in ("model.safetensors", "checkpoints/step-00000001.ckpt", "adapter/adapter_config.json"):
        write(tmp_path / name)
    write(tmp_path / "tensorboard" / "events.out.tfevents.1")
    users = ["notes.txt", "generation_config.json", "adapter/README.md", "chat/mine.txt"]
    for name in users:
        write(tmp_path / name)
    with RunDirectory.create(tmp_path, Recipe(), WORKLOAD, overwrite=True):
        left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*users, ".lock", "recipe.yaml", "workload.yaml"}
    assert not (tmp_path / "checkpoints").exists()


def test_what_is_beside_stays_listed_when_it_is_written_twice(tmp_path):
    with RunDirectory.create(tmp_path, Recipe(), WORKLOAD) as run:
        for name in ("config.json", "tokenizer.json"):
            with taken_in(run.path) as folder:
                (folder / name).write_text(name)
    assert (tmp_path / "config.json").read_text() == "config.json"
    with RunDirectory.create(tmp_path, Recipe(), WORKLOAD, overwrite=True):
        assert names_in(tmp_path) == [".lock", "recipe.yaml", "workload.yaml"]


@pytest.mark.parametrize("listed", [["../mine", "WHOLE/mine", 3], 3, {}, None])
def test_a_list_that_was_altered_deletes_nothing_outside(tmp_path, listed):
    with RunDirectory.create(tmp_path / "run", Recipe(), WORKLOAD):
        pass
    (tmp_path / "mine").write_text("")
    text = json.dumps(listed).replace("WHOLE", str(tmp_path))
    (tmp_path / "run" / ".beside").write_text(text)
    with RunDirectory.create(tmp_path / "run", Recipe(), WORKLOAD, overwrite=True):
        assert (tmp_path / "mine").exists()


def test_weights_in_a_directory_without_a_run_are_not_removed(tmp_path):
    (tmp_path / "model.safetensors").write_text("pretrained")
    with RunDirectory.create(tmp_path, Recipe(), WORKLOAD):
        assert (tmp_path / "model.safetensors").read_text() == "pretrained"


def test_only_a_missing_run_is_an_error_on_open(tmp_path):
    with pytest.raises(InputError, match="holds no run"):
        RunDirectory.open(tmp_path / "absent")
    with pytest.raises(InputError, match="holds no run"):
        RunDirectory.open(tmp_path)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("place", ["file/run", "/proc/run", "file"])
def test_unwritable_directory_is_found_before_anything(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        check_new(tmp_path / place)
    assert names_in(tmp_path) == ["file"]


def test_check_leaves_no_directory_behind(tmp_path):
    check_new(tmp_path / "a" / "b" / "c")
    assert names_in(tmp_path) == []
    (tmp_path / "mine").mkdir()
    check_new(tmp_path / "mine")
    assert names_in(tmp_path) == ["mine"]


def test_killed_while_it_is_made_it_is_no_run_yet(tmp_path):
    # The workload is written last; a directory with all but that one is free for a new run.
    with RunDirectory.create(tmp_path, Recipe(), WORKLOAD):
        pass
    (tmp_path / "workload.yaml").unlink()
    assert not holds_run(tmp_path)
    check_new(tmp_path)


def test_second_process_is_refused(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom snugfit.runs.run_dir import RunDirectory\n"
        "from snugfit.errors import InputError\n"
        "try:\n    RunDirectory.open(Path(sys.argv[1])).close()\nexcept InputError as error:\n    print(error)\n"
    )

    def other():
        return subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True).stdout

    with RunDirectory.create(tmp_path, Recipe(), WORKLOAD):
        assert "another process is training" in other()
    assert other() == ""


def test_rewind_drops_later_rows_and_half_a_line(tmp_path):
    with RunDirectory.create(tmp_path, Recipe(), WORKLOAD) as run:
        for step in range(1, 6):
            run.log({"step": step, "loss": step / 3})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')
    with RunDirectory.open(tmp_path) as run:
        assert [row["step"] for row in run.read_metrics()] == [1, 2, 3, 4, 5]
        run.rewind_metrics(3)
        assert run.rows == 3
        run.log({"step": 4, "loss": 9.0})
        run.flush_metrics()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["loss"] == 9.0 and rows[0]["loss"] == 1 / 3


def test_leftovers_of_a_killed_process_go_when_the_run_is_opened(tmp_path):
    with RunDirectory.create(tmp_path, Recipe(), WORKLOAD) as run:
        run.checkpoints.save(1, {"x": 1})
    for folder in (tmp_path, tmp_path / "checkpoints"):
        (folder / ".writing-abc").write_text("half")
    (tmp_path / ".writing-folder").mkdir()
    (tmp_path / ".writing-folder" / "config.json").write_text("half")
    with RunDirectory.open(tmp_path):
        pass
    assert not list(tmp_path.rglob(".writing-*"))
    assert (tmp_path / "checkpoints" / "step-00000001.ckpt").exists()


def test_summary_on_a_full_disk_is_a_training_error(tmp_path, monkeypatch):
    with RunDirectory.create(tmp_path, Recipe(), WORKLOAD) as run:
        monkeypatch.setattr(type(tmp_path), "write_text", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(TrainingError, match=r"summary\.json cannot be written: full"):
            run.write_summary({})
    assert not (tmp_path / "summary.json").exists()


def test_run_directory_is_looked_at_without_torch(tmp_path):
    code = (
        "import sys, pathlib\nfrom snugfit.runs.run_dir import RunDirectory\nfrom snugfit.recipe import Recipe\n"
        "RunDirectory.create(pathlib.Path(sys.argv[1]), Recipe(), {}).close()\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "run"], check=True)


# -- places that cannot be written: one message, before anything is trained


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_run_in_a_place_that_takes_nothing_is_not_resumed(tmp_path, monkeypatch, number):
    RunDirectory.create(tmp_path, Recipe(), WORKLOAD).close()
    refuse_writing(monkeypatch, tmp_path, number)
    with pytest.raises(InputError, match=f"cannot be written: {os.strerror(number)}.*copy it") as error:
        RunDirectory.open(tmp_path)
    assert error.value.exit_code == 2


def test_a_lock_that_can_be_written_in_a_place_that_cannot(tmp_path, monkeypatch):
    RunDirectory.create(tmp_path, Recipe(), WORKLOAD).close()

    def full(*args, **settings):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    with pytest.raises(InputError, match="cannot be written: No space left"):
        RunDirectory.open(tmp_path)


@pytest.mark.parametrize("first", range(6))
def test_a_disk_that_fills_up_while_a_run_is_made(tmp_path, monkeypatch, first):
    refuse_writing(monkeypatch, tmp_path, errno.ENOSPC, first)
    path = tmp_path / "run"
    try:
        RunDirectory.create(path, Recipe(), WORKLOAD, plan="{}").close()
    except InputError as error:
        assert "cannot be written: No space left" in str(error) and error.exit_code == 2
        assert not holds_run(path)
    else:
        pytest.fail("nothing was refused")


@pytest.mark.parametrize("place", ["file", "file/run", "link"])
def test_something_else_in_place_of_the_directory(tmp_path, place):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(InputError, match="cannot be written"):
        RunDirectory.create(tmp_path / place, Recipe(), WORKLOAD)
    with pytest.raises(InputError, match="holds no run"):
        RunDirectory.open(tmp_path / place)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc, where nobody can make a directory")
def test_a_file_system_that_takes_no_directories(capsys):
    with pytest.raises(InputError, match="cannot be written"):
        check_new(Path("/proc/self/run"))


def test_an_altered_summary_is_named(tmp_path):
    with RunDirectory.create(tmp_path, Recipe(), WORKLOAD) as run:
        (tmp_path / "summary.json").write_text("{")
        with pytest.raises(InputError, match=r"summary\.json cannot be read"):
            run.read_summary()
