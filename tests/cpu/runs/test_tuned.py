"""A run with a budget finds out by itself which recipe is the fastest: what is kept, told, resumed and left out."""

import dataclasses
import json
import logging

import pytest
import torch
from torch import nn

import snugfit
from snugfit.errors import TrainingStopped
from snugfit.planner.rivals import Rival
from snugfit.recipe import Recipe
from snugfit.runs import tuned
from snugfit.training import tuning

STEPS = 24


def wide():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), *(_Block() for _ in range(4)), nn.Linear(16, 4))


class _Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 16))

    def forward(self, x):
        return x + self.layers(x)


DATA = torch.utils.data.TensorDataset(torch.randn(512, 1, 8, 8), torch.arange(512) % 4)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Trains for so long that three recipes can be timed; the budget is what plain training needs at least, and more."""
    monkeypatch.setattr(tuned, "LONGER", 1)
    monkeypatch.setattr(tuning, "FASTER", 0.5)  # what a busy machine makes of two recipes decides nothing here

    def train(name, *, plan=None, **given):
        return snugfit.train(
            wide, (DATA, None), loss=nn.CrossEntropyLoss(), batch_size=256, max_steps=STEPS, plan=plan, device="cpu",
            run_dir=tmp_path / name, progress=False, **given,
        )  # fmt: skip

    return train


@pytest.fixture(scope="module")
def plan():
    """A plan with two rivals that it would not have on every machine."""
    batch, loss = (DATA.tensors[0][:256], DATA.tensors[1][:256]), nn.CrossEntropyLoss()

    def rival(recipe):
        found = snugfit.estimate(wide, batch, recipe=recipe, loss=loss, device="cpu")
        peak = found.peak_allocated_bytes
        return Rival(
            recipe=recipe, step_seconds=0.01, peak_allocated_bytes=peak, peak_reserved_bytes=peak, host_bytes=0
        )

    found = snugfit.plan(wide, batch, loss=loss, budget="7MiB", device="cpu")
    rivals = rival(Recipe(checkpoint="all")), rival(Recipe(microbatch_size=128))
    return dataclasses.replace(found, rivals=rivals)


def test_what_was_tried_predicted_and_measured_is_told_and_kept(run, plan, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "snugfit"):
        result = run("one", plan=plan)
    found = result.document["tuning"]
    assert found["recipe"] == result.recipe.to_mapping() and found["steps"] <= 20
    assert [Recipe.from_mapping(one["recipe"]) for one in found["tried"]] == [
        plan.recipe, *(one.recipe for one in plan.rivals)
    ]  # fmt: skip
    assert all(one["seconds"] > 0 and one["predicted_seconds"] > 0 for one in found["tried"])
    assert "steps timed" in caplog.text and "The run goes on with" in caplog.text and "tried" in str(result)
    stored = json.loads((tmp_path / "one" / "plan.json").read_text())
    assert stored["tuned"] == found and Recipe.from_yaml(tmp_path / "one" / "recipe.yaml") == result.recipe
    # What is promised is promised for all that the run went by.
    peaks = [plan.estimate.peak_allocated_bytes, *(one.peak_allocated_bytes for one in plan.rivals)]
    assert result.predicted["peak_tensor_bytes"] == max(peaks)
    assert result.measured["peak_tensor_bytes"] == pytest.approx(max(peaks), rel=0.02)


def test_a_run_that_was_stopped_keeps_what_was_found_or_finds_it_again(run, plan, tmp_path, monkeypatch):
    whole = run("whole", plan=plan)

    def stopped(name, after):
        from snugfit.runs.budget_watch import BudgetWatch

        real = BudgetWatch.after_step

        def watched(self, steps_done):
            real(self, steps_done)
            if steps_done == after:
                import signal

                signal.raise_signal(signal.SIGINT)

        with monkeypatch.context() as patch:
            patch.setattr(BudgetWatch, "after_step", watched)
            with pytest.raises(TrainingStopped):
                run(name, plan=plan)
        kept = json.loads((tmp_path / name / "plan.json").read_text()).get("tuned")
        again = snugfit.train(
            wide, (DATA, None), loss=nn.CrossEntropyLoss(), run_dir=tmp_path / name, resume=True, progress=False
        )
        return kept, again

    kept, again = stopped("late", whole.document["tuning"]["steps"] + 1)
    assert kept is not None and again.document["tuning"] == kept and again.recipe.to_mapping() == kept["recipe"]
    kept, again = stopped("early", 2)
    assert kept is None and again.document["tuning"]["steps"] == whole.document["tuning"]["steps"]


def test_it_is_left_out_where_it_is_not_wanted_or_the_run_is_short(run, plan, tmp_path, monkeypatch):
    result = run("no", plan=plan, tune=False)
    assert result.document["tuning"] is None and result.recipe == plan.recipe
    assert json.loads((tmp_path / "no" / "plan.json").read_text())["rivals"] == []
    monkeypatch.setattr(tuned, "LONGER", 3)
    assert run("short", plan=plan).document["tuning"] is None


def test_a_pretend_card_has_no_seconds(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(tuned, "LONGER", 1)
    with caplog.at_level(logging.INFO, "snugfit"):
        result = snugfit.train(
            wide, (DATA, None), loss=nn.CrossEntropyLoss(), batch_size=256, max_steps=STEPS, budget="700MiB",
            device="rehearse:rtx-3090", run_dir=tmp_path / "card", progress=False, pin={"precision": "fp32"},
        )  # fmt: skip
    assert result.document["tuning"] is None
    stored = json.loads((tmp_path / "card" / "plan.json").read_text())
    assert result.recipe == Recipe.from_mapping(stored["recipe"])
    assert ("no recipe is timed" in caplog.text) == bool(stored["rivals"])


def test_processes_time_together_and_keep_one_recipe(tmp_path, plan):
    # Processes that are started read no file of tests: the model is torch's alone.
    given = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.GELU(), nn.Linear(16, 4))
    rivals = [dataclasses.replace(plan.rivals[0], recipe=Recipe(microbatch_size=size)) for size in (16, 8)]
    planned = dataclasses.replace(plan, recipe=Recipe(), fallbacks=(), rivals=tuple(rivals))
    result = snugfit.train(
        given, (DATA, None), loss=nn.CrossEntropyLoss(), batch_size=64, max_steps=80, plan=planned, device="cpu", gpus=2,
        run_dir=tmp_path / "two", progress=False,
    )  # fmt: skip
    found = result.document["tuning"]
    assert found is not None and found["recipe"] == result.recipe.to_mapping() and result.steps == 80
    assert len(found["tried"]) == 3 and all(one["seconds"] > 0 for one in found["tried"])
