"""Packed rows: exactly full, nothing lost, and the loss of the samples by themselves."""

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
from text_models import LLAMA, OPT, build

from snugfit.errors import InputError
from snugfit.workloads.text import TextOptions, open_text
from snugfit.workloads.text.causal import Sequences
from snugfit.workloads.text.packing import check_borders, pack
from snugfit.workloads.text.ragged import Ragged
from snugfit.workloads.text.tokenizer import byte_tokenizer

GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 259, "n_positions": 64}


def test_rows_by_hand():
    ids = Ragged.of([[11, 12, 13], [21, 22], [31, 32, 33, 34, 35]])
    batch = pack(ids, np.array([0, 0, 2]), length=4, pad_id=9).batch([0, 1, 2])
    assert batch["input_ids"].tolist() == [[11, 12, 13, 21], [22, 31, 32, 33], [34, 35, 9, 9]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0], [0, 0, 1, 2], [0, 1, 0, 1]]
    assert batch["labels"].tolist() == [[-100, 12, 13, -100], [-100, -100, -100, 33], [-100, 35, -100, -100]]


def test_rows_in_which_nothing_is_learned_are_left_out():
    packed = pack(Ragged.of([[1] * 8, [2] * 3]), np.array([8, 0]), length=4, pad_id=0)
    assert packed.batch(range(len(packed)))["input_ids"].tolist() == [[2, 2, 2, 0]]
    assert len(pack(Ragged.of([]), np.zeros(0, dtype=np.int64), length=4, pad_id=0)) == 0


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_loss_and_gradients_are_those_of_the_samples_by_themselves(config, attention):
    random = np.random.default_rng(0)
    ids = Ragged.of([random.integers(3, 250, size=size) for size in (5, 9, 3, 12, 7, 2, 11, 6)])  # 55 of 64
    prompts = np.array([0, 3, 0, 5, 0, 0, 2, 0])
    model = build(config, attn_implementation=attention).eval()
    gradients = []
    for data in (pack(ids, prompts, length=64, pad_id=0), Sequences(ids, prompts, pad_id=0, limit=64)):
        model.zero_grad()
        loss = model(**data.batch(range(len(data)))).loss
        loss.backward()
        gradients.append((loss.item(), torch.cat([weight.grad.flatten() for weight in model.parameters()])))
    (one, packed), (other, alone) = gradients
    assert one == pytest.approx(other, rel=1e-6)
    assert torch.allclose(packed, alone, rtol=0, atol=1e-6 * float(alone.abs().max()) + 1e-8)


def test_models_that_see_across_are_refused():
    check_borders(build(LLAMA), vocabulary=259, name="llama")
    check_borders(build(LLAMA).bfloat16(), vocabulary=259, name="llama")
    model = build(OPT).train()
    before = torch.get_rng_state()
    with pytest.raises(InputError, match="lets tokens attend to other samples"):
        check_borders(model, vocabulary=259, name="opt")
    assert model.training and torch.equal(torch.get_rng_state(), before)


def test_text_is_packed_whole():
    options = TextOptions(task="causal-lm", seq_len=128, packing=True)
    data = open_text("prose", options, tokenizer=byte_tokenizer(), vocabulary=259)
    loose = open_text("prose", TextOptions(task="causal-lm", seq_len=128), tokenizer=byte_tokenizer(), vocabulary=259)
    tokens = int(loose.train.ids.lengths.sum())
    assert abs(len(data.train) * 128 - tokens) < 128 + 64  # pieces of one token are left out when not packed
    batch = data.train.batch([0, 5])
    assert {name: tuple(value.shape) for name, value in batch.items()} == dict.fromkeys(
        ("input_ids", "position_ids", "labels"), (2, 128)
    )
    few = open_text(
        "prose",
        TextOptions(task="causal-lm", seq_len=128, packing=True, samples=16),
        tokenizer=byte_tokenizer(),
        vocabulary=259,
    )
    assert len(few.train) == 16 and len(few.test) == 2
