"""Early stopping and the best weights: found, kept, saved, and the same in a run that was stopped or killed in between."""

import shutil
import signal

import pytest
import torch
from test_loop import Watcher, data, make_loop, new_run, rows, without_speed

from snugfit.errors import InputError, SnugfitWarning
from snugfit.recipe import Recipe
from snugfit.runs.run_dir import RunDirectory

SETTINGS = {"eval_every": 2, "save_every": 3, "max_steps": 24, "lr": 0.02}
RECIPES = {
    "plain": (Recipe(), {}),
    "bf16": (Recipe(precision="bf16-true", stochastic_rounding=True), {}),
    "in backward": (Recipe(step_in_backward=True), {"optimizer": "sgd", "lr": 0.1}),
    "packed": (Recipe(adapter="lora", adapter_rank=2, quantize="int8"), {"lr": 0.1}),
}


def told(path, metric):
    """The values that a run's evaluations found, by step."""
    return [(row["step"], row[f"validation_{metric}"]) for row in rows(path) if "validation_loss" in row]


def expected(values, patience, *, rises):
    """The best step, and the one after which a run ends, by the rule in words: strictly better, or one more was not."""
    best, since = None, 0
    for step, value in values:
        if best is None or (value > best[1] if rises else value < best[1]):
            best, since = (step, value), 0
        else:
            since += 1
        if patience is not None and since == patience:
            return best, step
    return best, values[-1][0]


def trained(path, recipe=None, watcher=None, **settings):
    with new_run(path) as run:
        loop = make_loop(run, recipe=recipe, watcher=watcher, **{**SETTINGS, **settings})
        return loop.train(), loop.trainer.full_state_dict()


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_run_ends_and_keeps_what_the_rule_says(tmp_path, metric, seed):
    trained(tmp_path / "whole", seed=seed)
    values, rises = told(tmp_path / "whole", metric), metric == "accuracy"
    assert len(values) == 12
    for patience in (1, 3, None):
        (step, value), last = expected(values, patience, rises=rises)
        path = tmp_path / f"{patience}"
        result, weights = trained(path, seed=seed, patience=patience, keep_best=metric)
        assert result.steps == last and result.stopped_early == (last < 24)
        assert (result.best["step"], result.best["value"], result.best["saved"]) == (step, value, True)
        assert result.best["metric"] == f"validation_{metric}"
        assert told(path, metric) == [one for one in values if one[0] <= last]
        assert result.metrics[f"validation_{metric}"] == value
        # What is left in the end, and tested, is what a run that ended there has learned.
        there, learned = trained(tmp_path / f"to {step} of {patience}", seed=seed, max_steps=step)
        assert equal(weights, learned)
        assert {name: one for name, one in result.metrics.items() if "train" not in name} == {
            name: one for name, one in there.metrics.items() if "train" not in name
        }


def test_patience_alone_leaves_the_last_weights_and_nothing_else(tmp_path):
    result, weights = trained(tmp_path / "patient", patience=2)
    assert result.stopped_early and result.best["step"] == result.steps - 4 and not result.best["saved"]
    _, learned = trained(tmp_path / "short", max_steps=result.steps)
    assert equal(weights, learned) and not (tmp_path / "patient" / "best").exists()
    plain, _ = trained(tmp_path / "plain")
    assert plain.best is None and not plain.stopped_early


@pytest.mark.parametrize("name", RECIPES)
def test_killed_after_any_step_and_resumed_it_stops_and_keeps_the_same(tmp_path, name):
    recipe, more = RECIPES[name]
    settings = {**SETTINGS, "patience": 3, "keep_best": "accuracy", "seed": 2, **more}

    class Snapshots(Watcher):
        """The run directory as a process leaves it that is killed after a step, or in the middle of an evaluation."""

        def after_step(self, steps_done):
            shutil.copytree(tmp_path / "whole", tmp_path / f"killed after {steps_done}")

        def after_evaluation(self):
            shutil.copytree(tmp_path / "whole", tmp_path / f"killed in evaluation {len(self.told)}")
            super().after_evaluation()

    whole, weights = trained(tmp_path / "whole", recipe, Snapshots(), **settings)
    assert whole.stopped_early and 2 < whole.best["step"] < whole.steps
    kept = [path.name for path in (tmp_path / "whole" / "best").iterdir()]
    assert kept == [f"step-{whole.best['step']:08d}.safetensors"]
    killed = sorted(tmp_path.glob("killed*"))
    assert len(killed) >= 12
    for path in killed if name == "plain" else killed[::3]:
        with RunDirectory.open(path) as run:
            loop = make_loop(run, recipe=recipe, **settings)
            loop.resume()
            result = loop.train()
        assert (result.steps, result.best, result.metrics) == (whole.steps, whole.best, whole.metrics), path.name
        assert equal(loop.trainer.full_state_dict(), weights), path.name
        assert without_speed(path) == without_speed(tmp_path / "whole")
        assert [one.name for one in (path / "best").iterdir()] == kept


def test_stopped_by_ctrl_c_the_best_is_neither_restored_nor_lost(tmp_path):
    settings = {"patience": 3, "keep_best": "accuracy"}
    whole, weights = trained(tmp_path / "whole", **settings)
    with new_run(tmp_path / "parts") as run:
        result = make_loop(run, watcher=Watcher(stop_after=whole.steps - 1), **SETTINGS, **settings).train()
        assert result.stopped_by is signal.SIGINT and not result.stopped_early
    with RunDirectory.open(tmp_path / "parts") as run:
        loop = make_loop(run, **SETTINGS, **settings)
        loop.resume()
        assert loop.train().best == whole.best
    assert equal(loop.trainer.full_state_dict(), weights)


def test_a_damaged_checkpoint_does_not_take_the_best_with_it(tmp_path):
    settings = {"keep_best": "loss", "save_every": 5}
    whole, weights = trained(tmp_path, **settings)
    newest = max((tmp_path / "checkpoints").glob("*.ckpt"))
    newest.write_bytes(newest.read_bytes()[:1000])
    with RunDirectory.open(tmp_path) as run, pytest.warns(SnugfitWarning, match="is damaged"):
        loop = make_loop(run, **{**SETTINGS, **settings})
        loop.resume()
        assert loop.train().best == whole.best
    assert equal(loop.trainer.full_state_dict(), weights)


def test_where_the_best_is_gone_the_best_of_those_to_come_is_kept(tmp_path):
    trained(tmp_path, keep_best="loss", max_steps=12)
    for file in (tmp_path / "best").iterdir():
        file.unlink()
    with RunDirectory.open(tmp_path) as run, pytest.warns(SnugfitWarning, match="is gone.*best of those to come"):
        loop = make_loop(run, **{**SETTINGS, "keep_best": "loss", "max_steps": 24})
        loop.resume()
        found = loop.train()
    assert found.best["step"] > 12 and found.best["saved"]


@pytest.mark.parametrize("lost", ["damaged", "another model's"])
def test_a_best_that_cannot_be_read_is_named(tmp_path, lost):
    trained(tmp_path / "run", keep_best="loss", max_steps=24)
    (file,) = (tmp_path / "run" / "best").iterdir()
    if lost == "damaged":
        file.write_bytes(file.read_bytes()[:-100])
    else:
        from snugfit.workloads.weights_file import save_model

        save_model(file, {"w": torch.ones(2)})
    with RunDirectory.open(tmp_path / "run") as run:
        loop = make_loop(run, **SETTINGS, keep_best="loss")
        with pytest.raises(InputError, match=r"step-.*safetensors") as error:
            loop.resume()
            loop.train()
    assert {"damaged": "damaged", "another model's": "another model"}[lost] in str(error.value)


def test_a_loss_that_is_no_number_is_never_the_best(tmp_path, monkeypatch):
    from snugfit.runs import loop as loops

    values = iter([float("nan"), 2.0, float("inf"), 3.0, 1.5, float("nan"), 1.5, 1.6])

    def read(added, task):
        found = real(added, task)
        return None if found is None else type(found)(loss=next(values, 9.0), metrics=found.metrics, samples=1)

    real = loops.read
    monkeypatch.setattr(loops, "read", read)
    result, _ = trained(tmp_path, patience=3, keep_best="loss")
    assert (result.best["value"], result.best["step"], result.steps) == (1.5, 10, 16)


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    from snugfit.errors import TrainingError
    from snugfit.training import whole_weights

    def full(path, *_):
        raise OSError(28, "No space left on device", str(path))

    with new_run(tmp_path) as run:
        loop = make_loop(run, **SETTINGS, keep_best="loss")
        monkeypatch.setattr(whole_weights, "save_tensors", full)
        with pytest.raises(TrainingError, match="takes no more after step 2: No space left on device"):
            loop.train()


def test_what_is_kept_takes_no_memory(tmp_path):
    """Written and read back tensor by tensor: neither shows beside the step, also where weights are most of it."""
    from snugfit.measure.allocator_events import AllocatorEvents, warm_up

    def peak(path, **settings):
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 20000), torch.nn.Linear(20000, 10))
        with new_run(path) as run:
            loop = make_loop(
                run, model=model, max_steps=6, eval_every=1, save_every=100, optimizer="sgd", lr=10.0, **settings
            )
            events = AllocatorEvents()
            warm_up()
            events.start()
            result = loop.train()
            events.stop()
        return events.peak_bytes, result

    plain, _ = peak(tmp_path / "plain")
    kept, result = peak(tmp_path / "kept", keep_best="loss")
    assert result.best["step"] < 6
    assert kept <= 1.01 * plain


def test_data_without_a_validation_part_and_metrics_that_are_not_reported_are_refused():
    from dataclasses import replace

    from test_loop import TASK

    from snugfit.runs.best import check_best
    from snugfit.workload import Workload

    splits = data()
    check_best(Workload(keep_best="accuracy", patience=1), TASK, splits)
    with pytest.raises(
        InputError, match="'acuracy', which image-classification does not report; did you mean 'accuracy'"
    ):
        check_best(Workload(keep_best="acuracy"), TASK, splits)
    with pytest.raises(InputError, match="loss, accuracy"):
        check_best(Workload(keep_best="perplexity"), TASK, splits)
    for wanted in ({"patience": 2}, {"keep_best": "loss"}):
        with pytest.raises(InputError, match=f"{next(iter(wanted))}: a run is judged by"):
            check_best(Workload(**wanted), TASK, replace(splits, validation=None))
