"""Caches of keys and values: off in a trainer's passes, and the user's config is left as it was."""

import pytest
import torch

import snugfit
from snugfit import Recipe
from snugfit.training.caches import caching_configs

transformers = pytest.importorskip("transformers")

TOKENS = torch.randint(0, 64, (4, 8), generator=torch.Generator().manual_seed(0))
BATCH = {"input_ids": TOKENS, "labels": TOKENS, "attention_mask": (torch.arange(8) < 6).long().repeat(4, 1)}


def llama():
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def gpt2():
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=64, n_positions=64, bos_token_id=1, eos_token_id=2,
        resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def t5():
    config = transformers.T5Config(
        d_model=32,
        d_ff=64,
        d_kv=8,
        num_layers=2,
        num_heads=4,
        vocab_size=64,
        decoder_start_token_id=0,
        dropout_rate=0.0,
    )
    return transformers.T5ForConditionalGeneration(config)


def trained(build, *, use_cache=True, checkpoint="all"):
    torch.manual_seed(0)
    model = build()
    for config in caching_configs(model):
        config.use_cache = use_cache
    trainer = snugfit.prepare(model, Recipe(checkpoint=checkpoint), optimizer="sgd", lr=0.1, device="cpu")
    trainer.step(BATCH)
    return trainer


@pytest.mark.parametrize("checkpoint", ["all", "selective", "blocks:1", "none"])
@pytest.mark.parametrize("build", [llama, gpt2, t5])
def test_a_model_that_would_cache_trains_like_one_that_would_not(build, checkpoint):
    expected = trained(build, use_cache=False, checkpoint="none").model.state_dict()
    trainer = trained(build, checkpoint=checkpoint)
    torch.testing.assert_close(dict(trainer.model.state_dict()), dict(expected))
    assert trainer.model.config.use_cache is True
    assert all(config.use_cache is True for config in caching_configs(trainer.model))


def test_evaluation_fills_no_cache_and_generation_still_does():
    trainer = trained(llama)
    trainer.model.eval()
    assert trainer.evaluate_batch(BATCH).past_key_values is None
    assert trainer.model(**BATCH).past_key_values is not None


def test_the_config_comes_back_when_a_step_fails():
    model = llama()
    trainer = snugfit.prepare(model, optimizer="sgd", device="cpu")
    with pytest.raises(IndexError):
        trainer.step({**BATCH, "input_ids": TOKENS + 100})
    assert model.config.use_cache is True


@pytest.mark.parametrize("build", [llama, gpt2])
def test_the_simulator_predicts_the_same_bytes_with_and_without(build):
    def without():
        model = build()
        model.config.use_cache = False
        return model

    def peak(build):
        estimate = snugfit.estimate(build, BATCH, recipe=Recipe(checkpoint="all"), optimizer="sgd", device="cpu")
        return estimate.peak_allocated_bytes

    assert peak(build) == peak(without)
