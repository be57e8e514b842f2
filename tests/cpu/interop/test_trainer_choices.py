"""What `plan_for` may change of a Trainer: literal lists of choices."""

import functools

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed (pip install 'snugfit[text]')")

import small_trainers
import transformers

from snugfit.interop.trainer_choices import level_of, settings_of, splits_of, why_uncut

ANY = {"exact", "rounding", "different"}


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
    trainer.loss_is_scaled_for_ga = False
    found = [tuple(row.values()) for row in splits_of(trainer, ANY)]
    assert found == [(6, 1), (3, 2), (), (1, 6)]  # empty: as it is


def _llama(folder, **settings):
    sizes = {**small_trainers.SIZES, "num_key_value_heads": 4}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    return transformers.Trainer(model=model, args=transformers.TrainingArguments(str(folder), report_to=[]), **settings)


def _bert(folder):
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**small_trainers.SIZES))
    return transformers.Trainer(model=model, args=transformers.TrainingArguments(str(folder), report_to=[]))


def _gpt2(folder):
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=64, n_head=4, vocab_size=100))
    return transformers.Trainer(model=model, args=transformers.TrainingArguments(str(folder), report_to=[]))


def _vit(folder, **settings):
    config = transformers.ViTConfig(**small_trainers.SIZES, image_size=32, patch_size=16, **settings)
    model = transformers.ViTForImageClassification(config)
    return transformers.Trainer(model=model, args=transformers.TrainingArguments(str(folder), report_to=[]))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_llama, None),
        (_gpt2, None),
        (_bert, "the loss of BertForSequenceClassification"),
        (functools.partial(_vit, num_labels=3), None),
        (functools.partial(_vit, num_labels=1), "the loss of ViTForImageClassification"),
        (small_trainers.trainer, "Counting.compute_loss"),
        (functools.partial(_llama, compute_loss_func=lambda outputs, labels, **_: outputs.loss), "compute_loss_func"),
    ],
)
def test_losses_that_are_added_up_must_be_divided_by_all_labels(tmp_path, make, why):
    trainer = make(tmp_path)
    found = why_uncut(trainer, ANY)
    assert found is None if why is None else f"and {why} may not divide by the labels" in found
    assert (list(splits_of(trainer, ANY)) == [{}]) == (why is not None)


def test_pieces_that_are_divided_move_the_weights_as_the_whole_does(tmp_path):
    moved = []
    for size, pieces in ((8, 1), (4, 2)):
        settings = {"per_device_train_batch_size": size, "gradient_accumulation_steps": pieces, "optim": "sgd"}
        trainer = small_trainers.trainer(tmp_path, max_steps=1, max_grad_norm=0.0, **settings)
        trainer.model.double()
        trainer.loss_is_scaled_for_ga = False
        assert why_uncut(trainer, ANY) is None
        before = trainer.model.classifier.weight.detach().clone()
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        trainer.train()
        moved.append(trainer.model.classifier.weight.detach() - before)
    assert moved[0].norm() > 0 and torch.allclose(*moved, rtol=1e-9, atol=0)


def test_batch_statistics_allow_no_other_split(tmp_path):
    trainer = small_trainers.trainer(tmp_path)
    trainer.model.norm = torch.nn.BatchNorm1d(4)
    assert list(splits_of(trainer, ANY)) == [{}]


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_a_smaller_microbatch_draws_other_masks(tmp_path, rate):
    trainer = _llama(tmp_path)
    trainer.model.norm = torch.nn.Dropout(rate)
    cut = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
    assert (list(splits_of(trainer, {"exact"})) == [{}]) == bool(rate)
    assert cut in splits_of(trainer, ANY)
    assert level_of(trainer, cut) == ("different" if rate else "exact")


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({"gradient_checkpointing": True, "optim": "adamw_torch_fused"}, "exact"),
        ({"bf16": True}, "rounding"),
        ({"optim": "adamw_bnb_8bit"}, "rounding"),
        ({"bf16": True, "optim": "adafactor"}, "different"),
    ],
)
def test_level(tmp_path, changes, level):
    assert level_of(_llama(tmp_path), changes) == level
