"""A decoder of transformers is simulated as it runs: without a mask where nothing is packed or padded."""

from __future__ import annotations

import sys

import pytest
import torch

from snugfit.fake_device.accelerator import Personality
from snugfit.fake_device.packed_sequences import ANSWER, told_unpacked
from snugfit.recipe import Recipe
from snugfit.simulator.session import simulate_training

transformers = pytest.importorskip("transformers")


def build():
    config = transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128,
        vocab_size=200, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_no_mask_is_made_for_ordinary_batches(kind):
    ids = torch.zeros(2, 16, dtype=torch.long)
    recording = simulate_training(
        build, Recipe(precision="bf16-true"), {"input_ids": ids, "labels": ids}, personality=Personality(kind=kind)
    )
    ran = {run.operator for run in recording.trace.runs}
    assert ANSWER in recording.answered
    assert "aten.where.self" not in ran and "aten.bitwise_and.Tensor" not in ran
    kernel = "flash_attention_for_cpu" if kind == "cpu" else "flash_attention"
    assert any(kernel in name for name in ran)


def test_the_library_is_left_as_it_was():
    from transformers import masking_utils

    original = masking_utils.find_packed_sequence_indices
    said: list[str] = []
    with told_unpacked(said.append):
        assert masking_utils.find_packed_sequence_indices(torch.arange(4)[None] % 2) is None
    assert masking_utils.find_packed_sequence_indices is original and said == [ANSWER]


def test_nothing_happens_without_the_library(monkeypatch):
    monkeypatch.delitem(sys.modules, "transformers.masking_utils", raising=False)
    with told_unpacked(pytest.fail):
        pass
