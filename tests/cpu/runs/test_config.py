"""A run before it begins: made without torch, the same one in another process, and read from its directory to go on."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys

import pytest

from snugfit.errors import RecipeError, SnugfitWarning, TrainingStopped
from snugfit.recipe import Recipe
from snugfit.runs.config import RunConfig
from snugfit.runs.request import NAMES, Given
from snugfit.runs.run_dir import RunDirectory

SAID = {**dict.fromkeys(NAMES), "model": "model.py:build", "data": "random"}
del SAID["settings"]


def new(path, **options):
    ways = {"budget": None, "overwrite": False, "tune": True}
    return RunConfig.new(SAID, Given(), options, recipe=None, plan=None, limits={}, run_dir=path, **ways)


def kept(path, **options):
    """A new run, whose directory is there."""
    config = new(path, **options)
    RunDirectory.create(path, config.chosen.recipe, config.request.to_mapping()).close()
    return config


def resumed(path, **options):
    nothing = dict.fromkeys(SAID)
    return RunConfig.resumed(nothing, Given(), options, recipe=None, run_dir=path, tune=True)


def test_it_is_frozen_and_the_same_in_another_process(tmp_path):
    config = new(tmp_path / "run", lr=0.1, checkpoint="all", gpus=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.budget = 1
    assert pickle.loads(pickle.dumps(config)) == config
    assert (config.chosen.recipe, config.request.settings.lr) == (Recipe(checkpoint="all"), 0.1)
    assert not (tmp_path / "run").exists()


def test_a_stop_is_the_same_in_another_process():
    stopped = pickle.loads(pickle.dumps(TrainingStopped("stopped after step 3.", 2)))
    assert (str(stopped), stopped.signal) == ("stopped after step 3.", 2)


def test_what_its_directory_keeps_is_the_run_that_goes_on(tmp_path):
    before = kept(tmp_path / "run", lr=0.1, checkpoint="all", max_steps=4)
    found = resumed(tmp_path / "run")
    assert found == dataclasses.replace(before, resume=True) == before.again()
    longer = resumed(tmp_path / "run", max_steps=9)
    assert longer.request.settings == before.request.settings.replace(max_steps=9)
    with pytest.raises(RecipeError, match=r"lr is 0\.5; the run has 0\.1"):
        resumed(tmp_path / "run", lr=0.5)


@pytest.mark.parametrize("change", [{"adapter": "none"}, {"adapter_alpha": 400.0}, {"quantize": "int8"}])
def test_what_is_trained_stays(tmp_path, change):
    kept(tmp_path / "run", max_steps=4, adapter="lora")
    with pytest.raises(RecipeError, match=f"{next(iter(change))} is "):
        resumed(tmp_path / "run", **change)


def test_a_schedule_says_why_it_has_a_length(tmp_path):
    kept(tmp_path / "run", max_steps=4, lr_schedule="cosine")
    for change in ({"max_steps": 5}, {"epochs": 3}):
        with pytest.raises(
            RecipeError, match="By the cosine schedule the learning rate of each step depends on the number"
        ):
            resumed(tmp_path / "run", **change)
    with pytest.raises(RecipeError) as error:
        resumed(tmp_path / "run", lr=0.5)
    assert "depends on" not in str(error.value)


@pytest.mark.parametrize(
    ("before", "now", "said"), [(2, 1, "in 1 process, and had 2"), (1, 2, "in 2 processes, and had 1")]
)
def test_another_number_of_processes_is_told(tmp_path, before, now, said):
    kept(tmp_path / "run", max_steps=4, gpus=before)
    with pytest.warns(SnugfitWarning, match=said):
        resumed(tmp_path / "run", gpus=now)


def test_a_finished_run_has_a_result_until_it_is_made_longer(tmp_path):
    config = kept(tmp_path / "run", max_steps=4)
    assert resumed(tmp_path / "run").result() is None
    with RunDirectory.open(tmp_path / "run") as run:
        run.write_summary({"steps": 4})
    assert resumed(tmp_path / "run").result() == {"steps": 4} and config.result() is None
    assert resumed(tmp_path / "run", max_steps=5).result() is None
    assert resumed(tmp_path / "run", max_steps=3).result() is None  # goes on, to be told that it has done more


def test_it_is_made_without_torch():
    code = "import sys, snugfit.runs.config, snugfit.runs.train\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
