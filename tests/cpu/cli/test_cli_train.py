"""`snugfit train` from the command to the files it leaves: results, Ctrl-C, a full disk, resuming."""

import importlib.util
import json
import os
import resource
import signal
import subprocess
import sys
import time

import patience
import pytest
import torch
from command_line import command, environment, run_command, tiny_run
from safetensors.torch import load_file

from snugfit.cli import main
from snugfit.measure.fresh import TUNED_ENVIRONMENT


def own_model(folder):
    spec = importlib.util.spec_from_file_location("own_model", folder / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build()


def start(folder, *words):
    return subprocess.Popen(
        command(*words), cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(condition, process, seconds=patience.SECONDS):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def test_digits_from_command_to_plain_model(folder):
    ended = run_command(
        *("train", "model.py:build", "--data", "digits", "--epochs", "3", "--lr", "0.01", "--run-dir", "run", "--json"),
        *("--checkpoint", "4", "--microbatch-size", "16"),
        cwd=folder,
        installed=True,
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert {
        *(
            "recipe",
            "workload",
            "fidelity",
            "predicted",
            "measured",
            "seconds",
            "samples_per_second",
            "metrics",
            "run_dir",
        ),
        "torch_version",
    } <= result.keys()
    assert result["predicted"] is None
    assert result["recipe"]["microbatch_size"] == 16
    assert result["workload"]["settings"]["lr"] == 0.01
    # Batch norm and dropout are read off the model: microbatches change both.
    assert result["fidelity"]["level"] == "different"
    assert list(result["fidelity"]["reasons"]) == ["microbatch_size"]
    assert result["measured"].keys() == {"peak_tensor_bytes", "host_tensor_bytes", "rss_bytes"}
    weights = load_file(folder / "run" / "model.safetensors")
    held = sum(value.nbytes for value in weights.values())
    assert 3 * held < result["measured"]["peak_tensor_bytes"] < 100 * held
    assert result["metrics"]["test_accuracy"] > 0.8
    assert result["metrics"].keys() == {
        *("train_loss", "validation_loss", "validation_accuracy", "test_loss", "test_accuracy")
    }
    assert sorted(path.name for path in (folder / "run").iterdir() if path.name not in (".lock", ".saved")) == [
        *(".code", ".data", "checkpoints", "metrics.jsonl", "model.safetensors", "recipe.yaml"),
        *("summary.json", "workload.yaml"),
    ]
    assert json.loads((folder / "run" / "summary.json").read_text()) == result
    own_model(folder).load_state_dict(weights, strict=True)
    # Progress went to stderr, a line for each evaluation.
    assert [line.split(":")[0] for line in ended.stderr.splitlines()] == ["step 20/60", "step 40/60"] + [
        "step 60/60"
    ] * 2

    again = run_command("train", "--run-dir", "run", "--resume", cwd=folder)
    assert again.returncode == 0
    assert "is finished" in again.stderr
    card = again.stdout
    for part in ("model.py:build on digits: 60 steps of 64", "microbatch_size=16", "different", "peak tensor", "KiB"):
        assert part in card
    assert f"{result['metrics']['test_accuracy']:.2%}" in card and "run\n" in card


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has these settings")
def test_the_process_starts_again_only_where_exact_rss_is_asked_for(folder, monkeypatch):
    """A line for each interpreter that starts, with its allocator settings."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(
        "import os\nwith open('starts', 'a') as file:\n    print(os.environ.get('MALLOC_TRIM_THRESHOLD_'), file=file)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")]))
    for name in TUNED_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    plain = run_command(*tiny_run("--json"), cwd=folder)
    assert (folder / "starts").read_text().split() == ["None"]
    (folder / "starts").unlink()
    exact = run_command(*tiny_run("--json", "--exact-rss"), cwd=folder)
    assert (folder / "starts").read_text().split() == ["None", TUNED_ENVIRONMENT["MALLOC_TRIM_THRESHOLD_"]]
    found = [json.loads(one.stdout)["measured"] for one in (plain, exact)]
    assert found[0].keys() == found[1].keys() and found[0]["peak_tensor_bytes"] == found[1]["peak_tensor_bytes"]


def test_ctrl_c_saves_and_says_how_to_go_on(folder):
    process = start(folder, *tiny_run("--max-steps", 100000, "--save-every", 20, "--run-dir", "my run"))
    checkpoints = folder / "my run" / "checkpoints"
    wait_for(lambda: list(checkpoints.glob("*.ckpt")), process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=patience.SECONDS)
    assert process.returncode == 130, err
    assert out == ""
    assert "Ctrl-C again stops at once" in err
    assert err.endswith("Go on with: snugfit train --run-dir 'my run' --resume\n")
    last = int(max(checkpoints.glob("*.ckpt")).stem[5:]) + 3
    aside = folder / "aside"
    (folder / "my run" / "checkpoints").rename(aside)
    lost = run_command("train", "--run-dir", "my run", "--resume", cwd=folder)
    assert lost.returncode == 2 and lost.stdout == ""
    assert (
        "had a checkpoint after step" in lost.stderr and "--overwrite" in lost.stderr and "Traceback" not in lost.stderr
    )
    aside.rename(folder / "my run" / "checkpoints")
    ended = run_command("train", "--run-dir", "my run", "--resume", "--max-steps", last, "--json", cwd=folder)
    assert ended.returncode == 0, ended.stderr
    assert "going on after step" in ended.stderr
    assert json.loads(ended.stdout)["steps"] == last


def test_disk_that_takes_no_more_is_exit_4_and_the_checkpoint_before_stays(folder):
    process = start(folder, *tiny_run("--max-steps", 100000, "--save-every", 5, "--run-dir", "run", "--json"))
    checkpoints = folder / "run" / "checkpoints"
    wait_for(lambda: list(checkpoints.glob("*.ckpt")), process)
    # A limit on the size of files stands in for the full disk: writes fail in the middle of the next checkpoint.
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (2000, 2000))
    out, err = process.communicate(timeout=patience.SECONDS)
    assert process.returncode == 4, err
    assert out == ""
    said = err.splitlines()[-1]
    assert said.startswith("snugfit: the run directory 'run' takes no more after step")
    newest = max(checkpoints.glob("*.ckpt"))
    assert said.endswith(f"Saved: run/checkpoints/{newest.name}. Go on with: snugfit train --run-dir run --resume")
    assert "Traceback" not in err
    assert not list(checkpoints.glob(".writing-*"))
    ended = run_command("train", "--run-dir", "run", "--resume", "--max-steps", int(newest.stem[5:]) + 3, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    assert f"going on after step {int(newest.stem[5:])} of" in ended.stderr


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


def words(*more):
    return [str(word) for word in tiny_run("--max-steps", 3, *more)]


def test_loss_that_is_not_finite_is_exit_4(here, capsys):
    assert main(words("--lr", "1e38", "--optimizer", "sgd", "--run-dir", "run", "--save-every", 1, "--json")) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        "Its update was not taken" in err and "start another run with other settings (--overwrite). Saved: run" in err
    )
    assert err.endswith("Go on with: snugfit train --run-dir run --resume\n") and "Saved: run/checkpoints/step-" in err


def test_without_evaluation_held_out_data_is_not_looked_at(here, capsys):
    assert main(words("--run-dir", "run", "--no-evaluate", "--json")) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics.pop("train_loss") > 0
    assert metrics and set(metrics.values()) == {None}


def test_default_run_directories_are_numbered(here, capsys):
    for name in ("runs/build-random", "runs/build-random-2"):
        assert main(words()) == 0
        assert (here / name / "summary.json").exists()
        assert name in capsys.readouterr().out


def test_run_is_not_overwritten_unless_asked(here, capsys):
    assert main(words("--run-dir", "run")) == 0
    before = (here / "run" / "summary.json").read_text()
    assert main(words("--run-dir", "run")) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (here / "run" / "summary.json").read_text() == before
    assert main(words("--run-dir", "run", "--overwrite", "--seed", "5")) == 0
    assert json.loads((here / "run" / "summary.json").read_text())["workload"]["settings"]["seed"] == 5


def test_resume_refuses_what_makes_it_another_run(here, capsys):
    assert main(words("--run-dir", "run", "--lr", "0.1")) == 0
    capsys.readouterr()
    changed = ["--lr", "0.2", "--batch-size", "8", "--data", "digits", "--precision", "bf16-mixed", "--eval-every", "2"]
    assert main(["train", "--run-dir", "run", "--resume", *changed]) == 2
    err = capsys.readouterr().err
    for part in ("lr is 0.2; the run has 0.1", "batch_size is 8", "data is 'digits'", "precision is 'bf16-mixed'"):
        assert part in err
    assert "eval_every is" not in err
    # What was said before may be said again.
    assert main([*words("--run-dir", "run", "--lr", "0.1"), "--resume"]) == 0
    assert "is finished" in capsys.readouterr().err


def test_resume_by_another_recipe_says_so_and_keeps_it(here, capsys):
    assert main(words("--run-dir", "run")) == 0
    assert main(["train", "--run-dir", "run", "--resume", "--max-steps", "4", "--microbatch-size", "8"]) == 0
    assert "goes on by another recipe (microbatch_size None -> 8)" in capsys.readouterr().err
    assert json.loads((here / "run" / "summary.json").read_text())["recipe"]["microbatch_size"] == 8
    assert main(["train", "--run-dir", "run", "--resume", "--max-steps", "5"]) == 0
    assert "another recipe" not in capsys.readouterr().err
    assert json.loads((here / "run" / "summary.json").read_text())["recipe"]["microbatch_size"] == 8


def test_out_of_memory_is_exit_3_and_a_leaner_recipe_goes_on(here, capsys, monkeypatch):
    from snugfit.training.step import Step

    forward = Step._forward_pass

    def small_memory(self, trainer, kept, batch):
        if trainer.steps_done == 2 and trainer.recipe.optimizer_impl is None:
            torch.empty(2**60, dtype=torch.uint8)
        return forward(self, trainer, kept, batch)

    monkeypatch.setattr(Step, "_forward_pass", small_memory)
    assert main(words("--run-dir", "run")) == 3
    err = capsys.readouterr().err
    assert "step 3 ran out of memory on cpu" in err and "microbatch_size=1 in data" in err
    assert "Saved: run/checkpoints/step-00000002.ckpt" in err  # though no checkpoint was due
    assert main(["train", "--run-dir", "run", "--resume", "--optimizer-impl", "for-loop"]) == 0


def test_finished_run_can_be_made_longer(here, capsys):
    assert main(words("--run-dir", "run")) == 0
    assert main(["train", "--run-dir", "run", "--resume", "--max-steps", "5"]) == 0
    assert json.loads((here / "run" / "summary.json").read_text())["steps"] == 5
    capsys.readouterr()
    assert main(["train", "--run-dir", "run", "--resume"]) == 0
    assert "is finished" in capsys.readouterr().err
    assert json.loads((here / "run" / "summary.json").read_text())["steps"] == 5


def test_a_run_is_not_made_shorter_than_it_is(here, capsys):
    assert main(words("--run-dir", "run")) == 0
    for step in (3, 2):  # finished, and stopped before it was
        assert main(["train", "--run-dir", "run", "--resume", "--max-steps", str(step - 1)]) == 2
        assert f"has done 3 steps, and {step - 1} are asked for (--epochs, --max-steps)" in capsys.readouterr().err
        (here / "run" / "summary.json").unlink(missing_ok=True)
    assert main(["train", "--run-dir", "run", "--resume"]) == 0


def test_killed_before_the_first_checkpoint_it_starts_over(here, capsys):
    from pathlib import Path

    from snugfit.recipe import Recipe
    from snugfit.runs.run_dir import RunDirectory

    assert main(words("--run-dir", "whole")) == 0
    with RunDirectory.open(Path("whole")) as run:
        workload = run.read_workload()
    RunDirectory.create(Path("killed"), Recipe(), workload).close()
    assert main(["train", "--run-dir", "killed", "--resume"]) == 0
    whole, killed = (load_file(here / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(whole[key], killed[key]) for key in whole)
    assert main(["train", "--run-dir", "absent", "--resume"]) == 2
    assert "holds no run to resume" in capsys.readouterr().err


def test_tensorboard_files_hold_the_rows(here):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(words("--run-dir", "run", "--predict", "--log-to", "tensorboard")) == 0
    events = EventAccumulator(str(here / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]
    assert [event.step for event in events.Scalars("test_accuracy")] == [3]
    summary = json.loads((here / "run" / "summary.json").read_text())
    for kind in ("predicted", "measured"):
        assert events.Scalars(f"memory/{kind}_peak_tensor_bytes")[-1].value == summary[kind]["peak_tensor_bytes"]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("torchvision:mobilenet_v3_small", ["--image-size", "32"]),
        ("timm:test_vit2", []),
    ],
)
def test_library_models_load_what_was_trained(here, model, options):
    library, name = model.split(":")
    data = ["--data", "random", "--samples", "8", "--batch-size", "4", "--max-steps", "1", "--run-dir", "run"]
    assert main(["train", model, *data, *options, "--precision", "bf16-true"]) == 0
    weights = load_file(here / "run" / "model.safetensors")
    if library == "timm":
        import timm

        plain = timm.create_model(name)
    else:
        import torchvision

        plain = getattr(torchvision.models, name)()
    plain.load_state_dict(weights, strict=True)


def test_linear_probe_changes_the_head_only(here):
    from snugfit.training.random_state import seed_everything
    from snugfit.workloads.models import build_model

    assert main(words("--run-dir", "run", "--freeze", "0.*,1.*,4.*", "--seed", "7")) == 0
    seed_everything(7)
    before = build_model("model.py:build").state_dict()
    after = load_file(here / "run" / "model.safetensors")
    changed = {name for name in after if after[name].is_floating_point() and not torch.equal(before[name], after[name])}
    assert {name for name in changed if "running" not in name} == {"7.weight", "7.bias"}
