"""Packed rows: exactly full, nothing lost, and the loss of the samples by themselves."""

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
from text_models import LLAMA, OPT, build

from snugfit.errors import InputError
from snugfit.workloads.text import TextOptions, open_text
from snugfit.workloads.text.packing import PackedTexts, check_borders
from snugfit.workloads.text.padded import PaddedTexts
from snugfit.workloads.text.ragged import Ragged
from snugfit.workloads.text.tokenizer import byte_tokenizer

GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 259, "n_positions": 64}


def samples(ids, prompts):
    """Token ids of which those of the prompts are not learned."""
    held = [np.array(one, dtype=np.int32) for one in ids]
    return Ragged.of(
        np.where(np.arange(len(one)) < prompt, ~one, one) for one, prompt in zip(held, prompts, strict=True)
    )


def test_rows_by_hand():
    ids = samples([[11, 12, 13], [21, 22], [31, 32, 33, 34, 35]], [0, 0, 2])
    batch = PackedTexts(ids, length=4, pad_id=9).batch([0, 1, 2])
    assert batch["input_ids"].tolist() == [[11, 12, 13, 21], [22, 31, 32, 33], [34, 35, 9, 9]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0], [0, 0, 1, 2], [0, 1, 0, 1]]
    assert batch["labels"].tolist() == [[-100, 12, 13, -100], [-100, -100, -100, 33], [-100, 35, -100, -100]]


def test_rows_in_which_nothing_is_learned_are_left_out():
    packed = PackedTexts(samples([[1] * 8, [2] * 3], [8, 0]), length=4, pad_id=0)
    assert packed.batch(range(len(packed)))["input_ids"].tolist() == [[2, 2, 2, 0]]
    assert len(PackedTexts(Ragged.of([]), length=4, pad_id=0)) == 0


def test_rows_are_cut_when_they_are_asked_for():
    ids = samples([[7] * 5000] * 40, [0] * 40)
    packed = PackedTexts(ids, length=64, pad_id=0)
    held = {id(value): value.nbytes for value in vars(packed).values() if isinstance(value, np.ndarray)}
    assert sum(held.values()) < ids.values.nbytes / 16, "only the places of the rows are held beside the samples"
    assert packed.batch([3124])["input_ids"].shape == (1, 64)


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_loss_and_gradients_are_those_of_the_samples_by_themselves(config, attention):
    random = np.random.default_rng(0)
    lengths, prompts = (5, 9, 3, 12, 7, 2, 11, 6), (0, 3, 0, 5, 0, 0, 2, 0)  # 55 of 64
    ids = samples([random.integers(3, 250, size=size) for size in lengths], prompts)
    model = build(config, attn_implementation=attention).eval()
    gradients = []
    for data in (PackedTexts(ids, length=64, pad_id=0), PaddedTexts(ids, pad_id=0, limit=64)):
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
