"""The loop: what is evaluated, logged and saved when, and that a run that was stopped goes on bitwise."""

import json
import os
import signal

import pytest
import torch
from torch import nn

import snugfit
from snugfit.errors import InputError, OutOfMemoryError, SnugfitWarning, TrainingError
from snugfit.recipe import Recipe
from snugfit.runs.job import steps_of_run
from snugfit.runs.loop import Loop
from snugfit.runs.run_dir import RunDirectory
from snugfit.runs.step_log import base_learning_rate
from snugfit.runs.stop_signal import StopSignal
from snugfit.training.random_state import seed_everything
from snugfit.workload import Workload
from snugfit.workloads.data import open_data
from snugfit.workloads.tasks import task_named

TASK = task_named("image-classification")


def small_model():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10)
    )


def data(samples=40):
    return open_data("random", image_size=8, channels=1, num_classes=10, seed=1, samples=samples)


class Watcher:
    """Notes what the loop tells, and may stop the run after a step."""

    def __init__(self, stop_after=None):
        self.told, self.stop_after = [], stop_after

    def after_step(self, steps_done):
        self.told.append(steps_done)
        if steps_done == self.stop_after:
            os.kill(os.getpid(), signal.SIGINT)

    def before_evaluation(self):
        self.told.append("evaluation")

    def after_evaluation(self):
        self.told.append("end")


def make_loop(run, *, recipe=None, watcher=None, model=None, **settings):
    settings = {"batch_size": 16, "epochs": 2, "seed": 3, **settings}
    seed_everything(settings["seed"])
    splits = data()
    workload = Workload.from_mapping(settings)
    total = steps_of_run(workload, len(splits.train))
    optimizer = settings.pop("optimizer", "adamw")
    trainer = snugfit.prepare(
        model or small_model(),
        recipe,
        loss=TASK.loss,
        optimizer=optimizer,
        device="cpu",
        **{**settings, "max_steps": total},
    )
    return Loop(trainer, splits, TASK, run, total_steps=total, observer=watcher)


def rows(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def new_run(path):
    return RunDirectory.create(path, Recipe(), {})


def saved_steps(run):
    return [int(path.stem.split("-")[1]) for path in run.checkpoints.paths()]


def test_epochs_evaluation_and_checkpoints_by_default(tmp_path):
    watcher = Watcher()
    with new_run(tmp_path) as run:
        result = make_loop(run, watcher=watcher).train()
        assert saved_steps(run) == [3, 6]  # 40 samples are 3 batches of 16, the last of 8
    assert watcher.told == [1, 2, 3, "evaluation", "end", 4, 5, 6, "evaluation", "end", "evaluation", "end"]
    assert result.steps == 6 and result.stopped_by is None
    found = rows(tmp_path)
    steps = [row for row in found if "loss" in row]
    assert [(row["step"], row["epoch"]) for row in steps] == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1), (6, 1)]
    assert {row["lr"] for row in steps} == {1e-3}
    assert [row["step"] for row in found if "validation_loss" in row] == [3, 6]
    assert found[-1].keys() == {"step", "epoch", "test_loss", "test_accuracy"}
    last = [row["loss"] for row in steps[3:]]
    assert result.metrics["train_loss"] == pytest.approx((16 * last[0] + 16 * last[1] + 8 * last[2]) / 40, rel=1e-12)
    assert result.metrics["test_accuracy"] == found[-1]["test_accuracy"]


def test_intervals_are_those_that_were_asked_for(tmp_path):
    with new_run(tmp_path) as run:
        make_loop(run, eval_every=4, save_every=5, max_steps=11).train()
        assert saved_steps(run) == [10, 11]
    found = rows(tmp_path)
    assert [row["step"] for row in found if "validation_loss" in row] == [4, 8, 11]
    # Rows that are read after the end of their epoch still carry it.
    assert [row["epoch"] for row in found if "loss" in row] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]


def test_max_steps_decides_whatever_the_epochs():
    assert steps_of_run(Workload(batch_size=16, epochs=2), 40) == 6
    assert steps_of_run(Workload(batch_size=16, epochs=2, max_steps=50), 40) == 50
    assert steps_of_run(Workload(batch_size=40, epochs=2), 40) == 2


def test_learning_rates_are_logged_as_they_were_used(tmp_path):
    used = []
    with new_run(tmp_path) as run:
        loop = make_loop(run, lr_schedule="cosine", warmup_steps=2, lr=0.5, optimizer="sgd")
        loop.trainer.optimizer.register_step_pre_hook(lambda own, *_: used.append(own.param_groups[0]["lr"]))
        loop.train()
        assert loop.trainer.optimizer.param_groups[0]["lr"] == 0.5  # between steps it is the rate that was given
    assert [row["lr"] for row in rows(tmp_path) if "loss" in row] == pytest.approx(used, rel=1e-12)
    assert len(set(used)) > 3


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "adafactor"])
def test_default_learning_rate_is_that_of_torch(name):
    from snugfit.training.optimizers import OPTIMIZER_TABLE

    optimizer = OPTIMIZER_TABLE[name].cls([nn.Parameter(torch.ones(2))])
    assert base_learning_rate(Recipe(), Workload(optimizer=name)) == optimizer.param_groups[0]["lr"]
    assert base_learning_rate(Recipe(optimizer=name), Workload(optimizer="sgd", lr=7.0)) == 7.0
    assert base_learning_rate(Recipe(), Workload(optimizer="custom")) is None


RECIPES = {
    "plain": (Recipe(), {"optimizer": "adam", "lr_schedule": "linear", "clip_norm": 1.0}),
    "fp16 scaler": (Recipe(precision="16-mixed", microbatch_size=6), {}),
    "stochastic rounding": (Recipe(precision="bf16-true", stochastic_rounding=True), {"lr": 1e-4}),
    "step in backward": (Recipe(step_in_backward=True, checkpoint=("1",)), {"optimizer": "sgd", "momentum": 0.9}),
    "offloaded optimizer": (Recipe(offload_optimizer=True), {"no_decay": True}),
    "workers": (Recipe(workers=1), {}),
}


@pytest.mark.parametrize("name", RECIPES)
def test_stopped_by_ctrl_c_and_resumed_is_bitwise_the_same(tmp_path, name):
    recipe, settings = RECIPES[name]
    settings = {"eval_every": 3, "save_every": 4, "epochs": 3, **settings}
    with new_run(tmp_path / "whole") as run:
        loop = make_loop(run, recipe=recipe, **settings)
        expected = loop.train()
        weights = loop.trainer.state_dict()["model"]
    with new_run(tmp_path / "parts") as run:
        result = make_loop(run, recipe=recipe, watcher=Watcher(stop_after=1), **settings).train()
        assert result.stopped_by is signal.SIGINT and result.steps == 1
    for more, expected_steps in ((2, 3), (2, 5), (None, 9)):
        with RunDirectory.open(tmp_path / "parts") as run:
            watcher = Watcher(stop_after=more)
            loop = make_loop(run, recipe=recipe, watcher=watcher, **settings)
            torch.rand(7)  # whatever was drawn before must not matter
            assert loop.resume()
            result = loop.train()
            assert result.steps == expected_steps
            assert saved_steps(run)[-1] == expected_steps
    found = loop.trainer.state_dict()["model"]
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[key], weights[key]) for key in weights)
    assert result.metrics == expected.metrics
    assert without_speed(tmp_path / "parts") == without_speed(tmp_path / "whole")


def without_speed(path):
    return [{key: value for key, value in row.items() if key != "samples_per_second"} for row in rows(path)]


def test_resume_before_the_first_checkpoint_starts_over(tmp_path):
    with new_run(tmp_path) as run:
        run.log({"step": 1, "loss": 3.0})
    with RunDirectory.open(tmp_path) as run:
        loop = make_loop(run)
        assert not loop.resume()
        loop.train()
    assert [row["step"] for row in rows(tmp_path) if "loss" in row] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("lost", ["removed", "damaged", "folder"])
def test_a_run_whose_checkpoints_are_gone_does_not_begin_again_in_silence(tmp_path, lost):
    with new_run(tmp_path) as run:
        make_loop(run, watcher=Watcher(stop_after=4)).train()
    written = sorted((tmp_path / "checkpoints").iterdir())
    assert written
    for path in written:
        path.rename(path.with_suffix(".damaged")) if lost == "damaged" else path.unlink()
    if lost == "folder":
        (tmp_path / "checkpoints").rmdir()
    with RunDirectory.open(tmp_path) as run, pytest.raises(InputError, match="had a checkpoint after step 4") as error:
        make_loop(run).resume()
    assert "overwrite" in str(error.value) and ("set aside" in str(error.value)) == (lost == "damaged")


def test_resume_from_the_one_before_a_damaged_checkpoint_is_bitwise_the_same(tmp_path):
    with new_run(tmp_path) as run:
        loop = make_loop(run)
        loop.train()
        weights = loop.trainer.state_dict()["model"]
        newest = run.checkpoints.paths()[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    with RunDirectory.open(tmp_path) as run:
        loop = make_loop(run)
        with pytest.warns(SnugfitWarning, match="step-00000006.ckpt is damaged"):
            assert loop.resume()
        assert loop.trainer.steps_done == 3
        loop.train()
    found = loop.trainer.state_dict()["model"]
    assert all(torch.equal(found[key], weights[key]) for key in weights)
    assert [row["step"] for row in rows(tmp_path) if "loss" in row] == [1, 2, 3, 4, 5, 6]


def test_finished_run_resumed_only_tests_again(tmp_path):
    with new_run(tmp_path) as run:
        expected = make_loop(run).train()
    before = rows(tmp_path)
    with RunDirectory.open(tmp_path) as run:
        watcher = Watcher()
        loop = make_loop(run, watcher=watcher)
        loop.resume()
        result = loop.train()
    assert watcher.told == ["evaluation", "end"]
    assert result.metrics == expected.metrics
    assert rows(tmp_path) == before


def test_second_ctrl_c_stops_at_once(tmp_path):
    class Impatient(Watcher):
        def after_step(self, steps_done):
            if steps_done == 2:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with new_run(tmp_path) as run, pytest.raises(KeyboardInterrupt):
        make_loop(run, watcher=Impatient()).train()
    assert signal.getsignal(signal.SIGINT) is before


def test_signal_is_told_once_and_handlers_are_put_back():
    told = []
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal(lambda: told.append(1)) as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop and stop.received is signal.SIGTERM
    assert told == [1]
    assert signal.getsignal(signal.SIGTERM) is before


def test_not_finite_loss_is_a_training_error_with_the_rows_before_it(tmp_path):
    with new_run(tmp_path) as run:
        loop = make_loop(run, max_steps=6, save_every=2)
        step = loop.trainer.step

        def poisoned(batch):
            images, labels = batch
            return step((images * float("nan"), labels) if loop.trainer.steps_done == 4 else batch)

        loop.trainer.step = poisoned
        with pytest.raises(TrainingError, match="step 5"):
            loop.train()
        assert saved_steps(run) == [2, 4]
    assert [row["step"] for row in rows(tmp_path) if "loss" in row] == [1, 2, 3, 4]


def test_full_disk_is_a_training_error_and_the_checkpoint_before_it_stays(tmp_path, monkeypatch):
    with new_run(tmp_path) as run:
        loop = make_loop(run)
        save = run.checkpoints.save

        def full(step, state, parts=None):
            if step == 6:
                raise OSError(28, "No space left on device")
            return save(step, state)

        monkeypatch.setattr(run.checkpoints, "save", full)
        with pytest.raises(TrainingError, match="No space left on device"):
            loop.train()
        assert saved_steps(run) == [3]


def test_evaluation_batches_are_no_larger_than_training_passes(tmp_path):
    with new_run(tmp_path) as run:
        loop = make_loop(run, recipe=Recipe(microbatch_size=4), model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
        sizes = []
        evaluate_batch = loop.trainer.evaluate_batch
        loop.trainer.evaluate_batch = lambda batch: sizes.append(len(batch[0])) or evaluate_batch(batch)
        loop.train()
    assert max(sizes) == 4


def test_losses_are_read_late_and_together(tmp_path, monkeypatch):
    with new_run(tmp_path) as run:
        loop = make_loop(run, max_steps=40, eval_every=100, save_every=100)
        loop.steps_per_epoch = 1000  # one long epoch, as far as reading is concerned
        reads = []
        read = loop.steps.read

        def noted(**how):
            rows = read(**how)
            reads.append(len(rows))
            return rows

        monkeypatch.setattr(loop.steps, "read", noted)
        loop._batches = endless
        loop.train()
    assert reads[0] == 1 and set(reads[1:4]) == {10}


def endless(dataset, size, **_):
    batch = (torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64))
    return (batch for _ in range(100))


@pytest.mark.parametrize("undone", [True, False])
def test_a_step_that_ended_half_way_is_not_saved(tmp_path, monkeypatch, undone):
    """Where the step was undone, the last whole one is saved; where it was not, the last checkpoint is all there is."""
    with RunDirectory.create(tmp_path, Recipe(), {}) as run:
        loop = make_loop(run, save_every=2, epochs=3)
        step = loop.trainer.step

        def fail_in_the_fourth(batch):
            if loop.trainer.steps_done == 3:
                raise OutOfMemoryError("memory ran out", undone=undone)
            return step(batch)

        monkeypatch.setattr(loop.trainer, "step", fail_in_the_fourth)
        with pytest.raises(OutOfMemoryError):
            loop.train()
        saved = run.checkpoints.paths()[-1].name
    assert saved == ("step-00000003.ckpt" if undone else "step-00000002.ckpt")
