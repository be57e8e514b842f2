"""The callback in transformers' Trainer and TRL's: predicted beside measured, the budget, the alarm."""

from types import SimpleNamespace

import pytest
import torch

import snugfit
from snugfit.errors import DoesNotFitError, InputError, SnugfitWarning

pytest.importorskip("transformers", reason="transformers is not installed (pip install 'snugfit[text]')")

import small_trainers

from snugfit.interop.trainer_job import TrainerJob
from snugfit.interop.transformers import MemoryCallback


def test_a_trainer_takes_what_is_predicted(tmp_path, capsys):
    callback = MemoryCallback(budget="1GiB")
    trainer = small_trainers.trainer(
        tmp_path, [callback], evaluated=True, gradient_accumulation_steps=2, max_grad_norm=1.0, bf16=True, use_cpu=True
    )
    before = torch.get_rng_state()
    trainer.train()
    report = callback.report
    assert report.predicted_bytes == pytest.approx(report.measured_bytes, rel=0.03)
    assert report.evaluation_bytes > 0
    assert sorted(report.step_bytes) == [1, 2, 3, 4, 5, 6]
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("snugfit: ")]
    assert "predicted" in lines[0] and "of a budget of 1.00 GiB" in lines[0]
    assert "predicted" in lines[1] and "measured" in lines[1] and "(6 steps)" in lines[1]
    assert report.to_mapping()["leak"] is None
    assert not list(tmp_path.iterdir())
    # The same batches as without the callback: what was read for the prediction has drawn no random numbers.
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    torch.set_rng_state(before)
    plain = small_trainers.trainer(
        tmp_path, evaluated=True, gradient_accumulation_steps=2, max_grad_norm=1.0, bf16=True, use_cpu=True
    )
    plain.train()
    assert [row["loss"] for row in plain.state.log_history if "loss" in row] == losses


def test_each_of_several_microbatches_may_be_the_widest(tmp_path):
    data = [{"input_ids": [5] * length, "labels": 0} for length in range(1, 61)]
    trainer = small_trainers.trainer(tmp_path, data=data, per_device_train_batch_size=2, gradient_accumulation_steps=8)
    assert [len(sample["input_ids"]) for sample in TrainerJob(trainer).train_samples] == [60, 59]


def test_a_trainer_that_is_kept_from_a_card_is_put_on_the_one_that_is_asked_for(tmp_path):
    found = [
        snugfit.estimate_for(small_trainers.trainer(tmp_path, use_cpu=use_cpu), device="rtx-3060-12gb")
        for use_cpu in (True, False)
    ]
    assert found[0].peak_allocated_bytes == found[1].peak_allocated_bytes > found[0].anatomy_bytes["weights"]


def test_a_trainer_that_exceeds_the_budget_is_stopped_before_it_trains(tmp_path, monkeypatch):
    def predicted(trainer, *, device, assume):
        assert isinstance(trainer, small_trainers.Counting) and device == "cpu"
        return SimpleNamespace(total_bytes=3 * 2**20, anatomy_bytes={"weights": 2**20})

    monkeypatch.setattr("snugfit.interop.transformers.estimate_for", predicted)
    callback = MemoryCallback(budget="1MiB", on_exceed="stop")
    trainer = small_trainers.trainer(tmp_path, [callback])
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with pytest.raises(DoesNotFitError, match=r"more than the budget of 1\.00 MiB.*plan_for.*Nothing was trained"):
        trainer.train()
    assert all(torch.equal(value, weights[name]) for name, value in trainer.model.state_dict().items())


def test_a_leak_in_a_trainer_is_named(tmp_path):
    callback = MemoryCallback(predict=False)
    trainer = small_trainers.trainer(tmp_path, [callback], max_steps=24, model=None)
    trainer.kept = []
    with pytest.warns(SnugfitWarning, match="memory grows step by step"):
        trainer.train()
    leak = callback.report.leak
    assert any(row.module.startswith("bert.embeddings") for row in leak.rows)
    assert any("modeling_bert.py" in row.line or "small_trainers.py" in row.line for row in leak.rows)
    assert "(Counting.kept)" in leak.holder or "(kept)" in leak.holder


def test_a_trainer_that_does_not_leak_is_silent(tmp_path):
    callback = MemoryCallback(predict=False)
    small_trainers.trainer(tmp_path, [callback], max_steps=60, evaluated=True, logging_steps=1).train()
    assert callback.report.leak is None and callback.report.steps == 60


def test_in_a_script_that_is_estimated_the_callback_does_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("snugfit.interop.transformers.is_simulation", lambda: True)
    callback = MemoryCallback(budget=1, on_exceed="stop")
    small_trainers.trainer(tmp_path, [callback], max_steps=2).train()
    assert callback.report is None and callback.estimate is None


def test_wrong_settings_are_told_at_once():
    with pytest.raises(InputError, match="budget '8 gigs' is not understood"):
        MemoryCallback(budget="8 gigs")
    with pytest.raises(InputError, match="did you mean 'warn'"):
        MemoryCallback(on_exceed="warning")


def test_what_cannot_be_predicted_is_told_and_trained(tmp_path):
    class Reading(small_trainers.Counting):
        def compute_loss(self, model, inputs, return_outputs=False, **settings):
            loss = super().compute_loss(model, inputs, **settings)
            return loss * len(model.classifier.weight.detach().unique()) / 128

    callback = MemoryCallback()
    trainer = small_trainers.trainer(tmp_path, [callback], max_steps=2)
    trainer.__class__ = Reading
    with pytest.warns(SnugfitWarning, match="was not predicted, and goes on"):
        trainer.train()
    assert callback.report.predicted_bytes is None and callback.report.not_predicted
    assert callback.report.steps == 2


def test_an_evaluation_that_keeps_what_it_predicts_is_told_of(tmp_path):
    trainer = small_trainers.trainer(tmp_path, evaluated=True)
    trainer.compute_metrics = lambda _: {}
    trainer.model.classifier = torch.nn.Linear(64, 2048)
    trainer.model.config.num_labels = trainer.model.num_labels = 2048
    trainer.eval_dataset = small_trainers.Texts(1600)
    with pytest.warns(SnugfitWarning, match="a pass through 200 batches keeps .* for those after the first 32,"):
        snugfit.estimate_for(trainer, device="rtx-4090")


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_trl_s_trainers_take_what_is_predicted(kind, tmp_path):
    pytest.importorskip("trl", reason="trl is not installed (pip install trl)")
    import small_trl

    callback = MemoryCallback()
    small_trl.trainer(kind, tmp_path, [callback]).train()
    assert callback.report.predicted_bytes == pytest.approx(callback.report.measured_bytes, rel=0.03)


def test_estimate_for_names_what_it_cannot_take(tmp_path):
    with pytest.raises(InputError, match=r"trainer is a int; give a transformers\.Trainer"):
        snugfit.estimate_for(3)
    trainer = small_trainers.trainer(tmp_path)
    trainer.train_dataset = None
    with pytest.raises(InputError, match="has no train_dataset"):
        snugfit.estimate_for(trainer)
    with pytest.raises(InputError, match="train_dataset has no samples"):
        snugfit.estimate_for(small_trainers.trainer(tmp_path, data=small_trainers.Texts(0)))


def test_a_trainer_that_compiles_is_predicted_compiled(tmp_path):
    compiled = small_trainers.trainer(tmp_path, torch_compile_backend="aot_eager")
    with pytest.warns(SnugfitWarning, match="torch.compile is predicted by compiling"):
        assert snugfit.estimate_for(compiled, device="cpu").anatomy_bytes["weights"]
