"""A whole run from Python: `snugfit.train` does what `snugfit train` does, and leaves the process as it found it."""

from __future__ import annotations

import json
import os
import signal
import threading
import types
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from command_line import MODEL_FILE, run_command
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import snugfit
from snugfit.errors import DoesNotFitError, InputError, RecipeError, TrainingError, TrainingStopped
from snugfit.recipe import Recipe

SMALL = {"samples": 96, "image_size": 8, "batch_size": 16}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with the models of the command line's tests."""
    (tmp_path / "model.py").write_text(MODEL_FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))


def images(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(count, 1, 8, 8, generator=generator), torch.randint(0, 10, (count,), generator=generator)
    )


def datasets():
    return images(64, 1), images(32, 2), images(32, 3)


def own(**changes):
    """Trains a model of Python's own on data of Python's own."""
    given = {"loss": nn.CrossEntropyLoss(), "batch_size": 16, "epochs": 2, "progress": False, **changes}
    return snugfit.train(given.pop("model", build), given.pop("data", datasets()), **given)


def weights(result):
    return load_file(Path(result.run_dir) / "model.safetensors")


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# -- the same as the command line


def test_the_weights_and_the_document_are_those_of_the_command_line(here):
    options = {
        "lr": 0.01,
        "epochs": 2,
        "microbatch_size": 8,
        "checkpoint": "4",
        "optimizer": "adam",
        "seed": 3,
        **SMALL,
    }
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    ended = run_command("train", "model.py:build", "--data", "random", *words, "--run-dir", "a", "--json", cwd=here)
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    result = snugfit.train("model.py:build", "random", run_dir="b", progress=False, **options)
    assert (here / "a" / "model.safetensors").read_bytes() == (here / "b" / "model.safetensors").read_bytes()
    found = json.loads(json.dumps(result.to_mapping()))
    assert found.keys() == document.keys() and found["measured"].keys() == document["measured"].keys()
    for key in ("recipe", "workload", "fidelity", "predicted", "metrics", "main_metric", "steps", "steps_per_epoch"):
        assert found[key] == document[key], key
    peak = document["measured"]["peak_tensor_bytes"]
    assert result.measured["peak_tensor_bytes"] == pytest.approx(peak, rel=0.01)
    assert result.recipe == Recipe(microbatch_size=8, checkpoint="4") and result.fidelity.level == "different"
    assert json.loads((here / "b" / "summary.json").read_text()) == found
    assert "test accuracy" in str(result)


def test_a_function_and_a_module_learn_what_the_named_model_learns(here, monkeypatch):
    monkeypatch.syspath_prepend(here)
    import model

    by_name = snugfit.train("model.py:build", "random", run_dir="a", progress=False, **SMALL)
    by_function = snugfit.train(model.build, "random", run_dir="b", progress=False, **SMALL)
    torch.manual_seed(0)
    module = model.build()
    by_module = snugfit.train(module, "random", run_dir="c", progress=False, **SMALL)
    assert equal(weights(by_name), weights(by_function))
    assert by_module.model is module and equal(dict(module.state_dict()), weights(by_module))
    sizes = [one.measured["peak_tensor_bytes"] for one in (by_name, by_function, by_module)]
    assert max(sizes) - min(sizes) <= 0.02 * min(sizes)  # weights that were there before count, too


def test_two_runs_are_the_same_run(here):
    assert equal(weights(own(run_dir="a")), weights(own(run_dir="b")))


# -- models, data and losses of one's own


def test_datasets_are_learned_evaluated_and_tested(here):
    result = own(lr=0.01, epochs=30, data=(images(64, 1), images(64, 1), images(64, 1)))
    assert result.metrics["train_loss"] < 0.5 and result.metrics["test_loss"] < 0.5
    assert result.steps == 120 and result.run_dir.startswith("runs")


def test_a_task_gives_loss_and_metrics(here):
    result = own(loss=None, task="image-classification")
    assert 0 <= result.metrics["test_accuracy"] <= 1


def test_without_held_out_data_nothing_is_evaluated(here):
    result = own(data=(images(64, 1), None))
    assert result.metrics["validation_loss"] is None and result.metrics["test_loss"] is None


class WithLoss(nn.Module):
    """Returns its loss, as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x, labels):
        return types.SimpleNamespace(loss=F.cross_entropy(self.layer(x), labels))


def test_a_model_that_returns_its_loss_and_samples_that_are_dicts(here):
    samples = [{"x": torch.randn(4), "labels": index % 2} for index in range(32)]
    result = own(model=WithLoss, data=(samples, samples), loss=None)
    assert result.metrics["validation_loss"] > 0


def test_samples_of_many_lengths_are_put_together_by_the_caller(here):
    samples = [torch.ones(1 + index % 5) for index in range(32)]

    def pad(chosen):
        return nn.utils.rnn.pad_sequence(chosen, batch_first=True), torch.zeros(len(chosen), dtype=torch.int64)

    def forward(model, batch):
        return model(batch[0].sum(1, keepdim=True))

    result = own(model=lambda: nn.Linear(1, 2), data=(samples, samples), collate=pad, forward=forward)
    assert result.steps == 4


# -- recipes, plans and budgets


def test_a_recipe_comes_as_an_object_as_fields_or_as_a_file(here):
    Recipe(checkpoint="2").to_yaml(here / "recipe.yaml")
    for recipe in (Recipe(checkpoint="2"), {"checkpoint": "2"}, "recipe.yaml"):
        assert own(recipe=recipe, microbatch_size=8).recipe == Recipe(checkpoint="2", microbatch_size=8)


def test_a_prediction_stands_beside_the_measurement(here):
    result = own(predict=True)
    predicted, measured = result.predicted["peak_tensor_bytes"], result.measured["peak_tensor_bytes"]
    assert predicted == pytest.approx(measured, rel=0.02)
    assert result.document["over_budget_bytes"] is None and own().predicted is None


def wide():
    layers = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10))


def test_a_budget_is_planned_for_and_kept(here):
    data = (images(1024, 1), images(512, 2))
    given = {"model": wide, "data": data, "batch_size": 512, "epochs": 1}
    plain = own(**given)
    budget = int(0.75 * plain.measured["peak_tensor_bytes"])
    few = ["init", "loss_impl", "optimizer_impl", "step_in_backward"]  # pieces of a batch, and layers that run again
    result = own(**given, budget=budget, forbid=few)
    assert result.measured["peak_tensor_bytes"] <= budget == result.predicted["budget_bytes"]
    assert result.fidelity.level == "exact" and (Path(result.run_dir) / "plan.json").exists()
    plan = snugfit.plan(wide, data[0][:512], loss=nn.CrossEntropyLoss(), budget=budget, device="cpu", forbid=few)
    for planned in (own(**given, plan=plan), own(**given, recipe=plan)):
        assert planned.recipe == plan.recipe and planned.predicted["budget_bytes"] == budget
    assert result.metrics["train_loss"] == pytest.approx(plain.metrics["train_loss"], rel=1e-4)
    with pytest.raises(DoesNotFitError, match="smallest budgets that work"):
        # whose libraries take long to load
        own(**given, budget="256KiB", forbid=[*few, "adapter", "quantize", "optimizer"])


@torch.library.custom_op("snugfit_test_run::with_scratch", mutates_args=())
def with_scratch(x: torch.Tensor) -> torch.Tensor:
    """Takes memory for each sample, but only for values that a prediction does not have."""
    if x.any():
        x.new_ones(x.shape[0], 16_000)
    return x.clone()


with_scratch.register_fake(lambda x: torch.empty_like(x))
with_scratch.register_autograd(lambda context, gradient: gradient)


class Scratch(nn.Module):
    def forward(self, x):
        return with_scratch(x)


def hidden():
    return nn.Sequential(wide(), Scratch())


def test_a_run_over_its_budget_says_so_and_goes_on_with_less(here):
    with pytest.warns(snugfit.SnugfitWarning, match="over the budget"):
        result = own(model=hidden, data=(images(1024, 1), None), batch_size=512, budget="16MiB", epochs=4)
    document = result.document
    assert document["over_budget_bytes"] == result.measured["peak_tensor_bytes"] - 16 * 2**20 > 0
    assert result.recipe.to_mapping() == document["over_budget"][-1]["next_recipe"]
    assert document["peak_tensor_bytes_at_end"] <= 16 * 2**20


# -- stopping and going on


class StopsAt:
    """Samples, one of which asks the process to stop when it is read."""

    def __init__(self, dataset, reads):
        self.dataset, self.left = dataset, reads

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return self.dataset[index]


def test_stopped_by_a_signal_it_says_how_to_go_on_and_goes_on_bitwise(here, capsys):
    handler = signal.getsignal(signal.SIGINT)
    whole = own(run_dir="whole")
    train, *others = datasets()
    with pytest.raises(TrainingStopped, match=r"stopped after step 3\. Saved: .*resume=True") as caught:
        own(data=(StopsAt(train, 40), *others), run_dir="parts")
    assert caught.value.signal == signal.SIGINT and signal.getsignal(signal.SIGINT) is handler
    with pytest.raises(InputError, match="data of this run came from Python") as error:
        snugfit.train(build, run_dir="parts", resume=True)
    assert "StopsAt" in str(error.value)
    with pytest.raises(RecipeError, match=r"lr is 0\.5; the run has None"):
        own(data=(StopsAt(train, -1), *others), run_dir="parts", resume=True, lr=0.5)
    capsys.readouterr()
    result = own(data=(StopsAt(train, -1), *others), run_dir="parts", resume=True)
    assert equal(weights(result), weights(whole)) and result.metrics == pytest.approx(whole.metrics)
    assert capsys.readouterr().err == ""  # progress=False


def test_a_finished_run_is_its_result_and_can_be_made_longer(here):
    first = snugfit.train("model.py:build", "random", run_dir="run", progress=False, **SMALL)
    again = snugfit.train(run_dir="run", resume=True)
    assert again.model is None and json.dumps(again.to_mapping()) == json.dumps(first.to_mapping())
    longer = snugfit.train(run_dir="run", resume=True, epochs=2, progress=False)
    whole = snugfit.train("model.py:build", "random", run_dir="whole", epochs=2, progress=False, **SMALL)
    assert longer.steps == 12 and equal(weights(longer), weights(whole))


def test_a_run_in_a_thread_leaves_signals_alone(here):
    found, handler = [], signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=lambda: found.append((own(), signal.getsignal(signal.SIGINT))))
    thread.start()
    thread.join()
    ((result, during),) = found
    assert result.steps == 8 and during is handler


def test_the_process_stays_as_it_is(here):
    before, handlers = dict(os.environ), [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    own()
    assert dict(os.environ) == before
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_training_that_fails_says_what_is_saved(here):
    with pytest.raises(TrainingError, match=r"the loss is nan.*No checkpoint was saved yet: start again.*overwrite"):
        own(loss=lambda output, batch: output.sum() * float("nan"))


# -- bad input


class Stream(IterableDataset):
    def __iter__(self):
        yield from datasets()[0]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"bach_size": 3}, RecipeError, "'bach_size' is no option; did you mean 'batch_size'"),
        ({"lr": -1, "precision": "bf17"}, RecipeError, r"2 problems(.|\n)*bf17(.|\n)*lr is -1"),
        ({"microbatch_size": 17}, RecipeError, "microbatch_size 17 is larger than the batch of 16"),
        ({"batch_size": 65}, InputError, "larger than the 64 training samples"),
        ({"data": "digitz"}, InputError, "did you mean 'digits'"),
        ({"data": None}, InputError, "data must be given"),
        ({"model": 3}, InputError, "model is a int"),
        ({"model": lambda: 3}, InputError, "returned a int"),
        ({"data": images(64, 1)}, InputError, "data is a TensorDataset; give a name"),
        ({"data": (Stream(), None)}, InputError, "Stream, which has no length"),
        ({"data": (DataLoader(images(64, 1)), None)}, InputError, r"give its dataset \(loader.dataset\)"),
        ({"data": (images(0, 1), None)}, InputError, "training dataset is empty"),
        ({"loss": None}, InputError, "nobody has said what is learned"),
        (
            {"loss": nn.CrossEntropyLoss(), "model": lambda: nn.Linear(3, 2)},
            InputError,
            "cannot take a batch of the data",
        ),
        ({"image_size": 8}, InputError, "--image-size has no meaning for datasets"),
        ({"image_size": 0}, InputError, "image_size is 0"),
        ({"model_arg": {"width": 3}}, InputError, "model_arg and weights are for a model by its name"),
        ({"recipe": 3}, InputError, "recipe is a int"),
        ({"recipe": Recipe(), "plan": Recipe()}, InputError, "Give plan=, or recipe= and budget="),
        ({"allow": "rounding"}, InputError, "allow belongs to a plan"),
        ({"budget": "8 gigs"}, InputError, "8 gigs"),
        ({"resume": True}, InputError, "resume needs run_dir"),
        ({"gpus": 2, "nodes": 2}, InputError, "nodes 2 needs rdzv"),
        ({"gpus": 2, "nodes": 2, "rdzv": "here:1"}, InputError, "nodes 2 needs run_dir"),
        ({"resume": True, "run_dir": "absent"}, InputError, "holds no run to resume"),
        ({"keep_checkpoints": 1}, InputError, "give at least 2"),
        ({"device": "cuda"}, InputError, "torch sees no CUDA device"),
    ],
)
def test_bad_input_is_an_exception_and_leaves_nothing(here, changes, error, message):
    if changes.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a card here")
    with warnings.catch_warnings(), pytest.raises(error, match=message):
        warnings.simplefilter("ignore")
        own(**changes)
    assert not (here / "runs").exists() and not (here / "absent").exists()
