"""A run with `ema_decay`: what it evaluates, leaves, resumes and shares out are the averages."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import snugfit
from snugfit.errors import TrainingStopped
from snugfit.runs.budget_watch import BudgetWatch

DECAY, STEPS = 0.8, 8
LOSS = nn.CrossEntropyLoss()


def data():
    torch.manual_seed(1)
    return torch.utils.data.TensorDataset(torch.randn(64, 8), torch.arange(64) % 3)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def trained(path, **given):
    settings = {
        "batch_size": 16,
        "lr": 0.05,
        "max_steps": STEPS,
        "device": "cpu",
        "progress": False,
        "ema_decay": DECAY,
    }
    return snugfit.train(model, (data(), data()), loss=LOSS, run_dir=path, **{**settings, **given})


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The averages by torch over the weights that the same run without averages has after each step."""
    folder, averaged = tmp_path_factory.mktemp("steps"), None
    for step in range(1, STEPS + 1):
        found = trained(folder / "run", ema_decay=None, max_steps=step, resume=step > 1, lr_schedule="constant").model
        averaged = averaged or AveragedModel(found, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
        averaged.update_parameters(found)
    return averaged.module


def assert_same(found, wanted):
    for one, other in zip(found.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_run_leaves_its_averages_and_evaluates_them(tmp_path, expected):
    result = trained(tmp_path / "run")
    assert_same(result.model, expected)
    stored = model()
    from safetensors.torch import load_file

    stored.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    assert_same(stored, expected)
    held_out = data()
    loss = LOSS(expected(held_out.tensors[0]), held_out.tensors[1]).item()
    assert result.metrics["validation_loss"] == pytest.approx(loss, rel=1e-4)


def test_a_resumed_run_leaves_the_same(tmp_path, expected, monkeypatch):
    real = BudgetWatch.after_step

    def stop(self, steps_done):
        real(self, steps_done)
        if steps_done == 3:
            import signal

            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(BudgetWatch, "after_step", stop)
        with pytest.raises(TrainingStopped):
            trained(tmp_path / "run")
    result = snugfit.train(model, (data(), data()), loss=LOSS, run_dir=tmp_path / "run", resume=True, progress=False)
    assert_same(result.model, expected)


def test_the_best_evaluation_is_kept_with_its_averages(tmp_path):
    result = trained(tmp_path / "run", keep_best="loss", eval_every=2)
    held_out = data()
    loss = LOSS(result.model(held_out.tensors[0]), held_out.tensors[1]).item()
    assert loss == pytest.approx(result.document["best"]["value"], rel=1e-4)


def test_processes_that_share_the_model_out_have_them_in_shares(tmp_path, expected):
    given = model()
    result = snugfit.train(
        given, (data(), data()), loss=LOSS, run_dir=tmp_path / "run", gpus=2, shard="full", batch_size=16, lr=0.05,
        max_steps=STEPS, device="cpu", progress=False, ema_decay=DECAY,
    )  # fmt: skip
    assert result.steps == STEPS
    assert_same(given, expected)
