"""What cannot be simulated says so in one message: what, where, and what to do about it."""

import pytest
import torch
from torch import nn

import snugfit
from snugfit import CannotSimulateError
from snugfit.cli import main
from snugfit.values import fake_failure


def deberta(**settings):
    transformers = pytest.importorskip("transformers")
    config = transformers.DebertaV2Config(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=100,
        max_position_embeddings=32,
        num_labels=2,
        **settings,
    )
    return transformers.DebertaV2ForSequenceClassification(config)


def words():
    return {"input_ids": torch.zeros(2, 8, dtype=torch.long), "labels": torch.zeros(2, dtype=torch.long)}


def cross_entropy(output, batch):
    return nn.functional.cross_entropy(output.logits, batch["labels"])


def test_a_loss_of_a_library_that_selects_by_values_says_how_to_go_around_it():
    with pytest.raises(
        CannotSimulateError, match=r"nonzero.* at .*modeling_deberta_v2\.py:\d+ needs the values"
    ) as caught:
        snugfit.estimate(deberta(), words(), device="rtx-4090")
    assert caught.value.exit_code == 5
    assert "in the code of transformers" in str(caught.value) and "(loss=...)" in str(caught.value)


def test_the_ways_around_it_that_the_message_names_work():
    def without_labels(model, batch):
        return model(input_ids=batch["input_ids"])

    own = snugfit.estimate(deberta(), words(), loss=cross_entropy, forward=without_labels, device="rtx-4090")
    option = snugfit.estimate(deberta(problem_type="single_label_classification"), words(), device="rtx-4090")
    assert own.peak_allocated_bytes == pytest.approx(option.peak_allocated_bytes, rel=0.01)


def test_code_of_the_users_own_is_told_how_to_do_without_values():
    assert fake_failure._library_of("/home/me/train.py:3") == ""
    assert fake_failure._library_of("/x/lib/python3.12/site-packages/timm/models/a.py:9") == "timm"


def test_the_fused_loss_names_what_to_estimate_in_its_place(tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, vocab_size=256, architectures=["LlamaForCausalLM"])
    config.save_pretrained(tmp_path)
    shape = [f"hf:{tmp_path}", "--task", "causal-lm", "--batch-size", "2", "--seq-len", "16", "--device", "rtx-4090"]
    assert main(["estimate", *shape, "--loss-impl", "fused"]) == 5
    shown = capsys.readouterr()
    assert shown.out == "" and "Traceback" not in shown.err
    assert "Triton kernels" in shown.err and "loss_impl='chunked'" in shown.err
    assert main(["estimate", *shape, "--loss-impl", "chunked"]) == 0
