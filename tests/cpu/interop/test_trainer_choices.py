"""What `plan_for` may change of a Trainer: literal lists of choices."""

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed (pip install 'snugfit[text]')")

import small_trainers

from snugfit.interop.trainer_choices import level_of, settings_of, splits_of


def words(trainer, levels):
    found = settings_of(trainer, set(levels), on_cpu=False)
    return [{name: str(getattr(value, "value", value)) for name, value in row.items()} for row in found]


def test_exact_choices_are_checkpointing_and_the_fused_kernel(tmp_path):
    trainer = small_trainers.trainer(tmp_path, optim="adamw_torch")
    kept, fused = {"gradient_checkpointing": "True"}, {"optim": "adamw_torch_fused"}
    assert words(trainer, ["exact"]) == [{}, fused, kept, kept | fused]


def test_wider_fidelity_adds_number_formats_and_optimizers(tmp_path):
    trainer = small_trainers.trainer(tmp_path, optim="adamw_torch_fused")
    found = words(trainer, ["exact", "rounding", "different"])
    assert {"bf16": "True"} in found and {"optim": "adafactor"} in found and {"optim": "adamw_torch_fused"} not in found


def test_an_optimizer_that_was_given_stays(tmp_path):
    trainer = small_trainers.trainer(tmp_path)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters())
    assert not any("optim" in row for row in words(trainer, ["exact", "rounding", "different"]))


def test_splits_keep_the_effective_batch(tmp_path):
    trainer = small_trainers.trainer(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=3)
    found = [tuple(row.values()) for row in splits_of(trainer)]
    assert found == [(6, 1), (3, 2), (), (1, 6)]  # empty: as it is


def test_batch_statistics_allow_no_other_split(tmp_path):
    trainer = small_trainers.trainer(tmp_path)
    trainer.model.norm = torch.nn.BatchNorm1d(4)
    assert list(splits_of(trainer)) == [{}]


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({"gradient_checkpointing": True, "optim": "adamw_torch_fused"}, "exact"),
        ({"bf16": True}, "rounding"),
        ({"optim": "adamw_bnb_8bit"}, "rounding"),
        ({"bf16": True, "optim": "adafactor"}, "different"),
    ],
)
def test_level(changes, level):
    assert level_of(changes) == level
