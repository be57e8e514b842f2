"""A padding mask has no values in a simulation: it is kept, which is right where every microbatch has padding."""

from __future__ import annotations

import sys

import pytest
import torch
from benchmarks.cpu_truth import Case, measured, predicted

import snugfit
from snugfit import Recipe
from snugfit.fake_device.padding_masks import ANSWER, told_padded
from snugfit.workers.pool import shared_pool

transformers = pytest.importorskip("transformers")


def build():
    config = transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=192,
        vocab_size=300, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def batch(padded_rows):
    ids = torch.zeros(4, 32, dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[:padded_rows, 16:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.zeros_like(ids)}


def peaks(padded_rows):
    case = Case(build, lambda: batch(padded_rows), None, True)
    recipe = Recipe(precision="bf16-mixed", microbatch_size=1)
    return predicted(case, recipe, shared_pool())[0], measured(case, recipe)[0]


def test_padding_in_every_microbatch_is_predicted():
    foreseen, real = peaks(padded_rows=4)
    assert foreseen == pytest.approx(real, rel=0.001)


def test_microbatches_without_padding_take_less_than_is_predicted():
    (foreseen, real), (same, most) = peaks(padded_rows=1), peaks(padded_rows=4)
    assert foreseen == same, "the values of a mask cannot be seen"
    assert real < most and foreseen == pytest.approx(real, rel=0.03)


def test_the_estimate_says_so():
    padded = snugfit.estimate(build(), batch(1), device="rtx-4090")
    plain = {name: value for name, value in batch(0).items() if name != "attention_mask"}
    assert ANSWER in padded.answered
    assert ANSWER not in snugfit.estimate(build(), plain, device="rtx-4090").answered


def test_the_library_is_left_as_it_was(monkeypatch):
    from transformers import masking_utils

    original = masking_utils._ignore_causal_mask_sdpa
    with told_padded(pytest.fail):
        assert masking_utils._ignore_causal_mask_sdpa is not original
    assert masking_utils._ignore_causal_mask_sdpa is original
    monkeypatch.delitem(sys.modules, "transformers.masking_utils", raising=False)
    with told_padded(pytest.fail):
        pass
