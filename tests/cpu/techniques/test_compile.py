"""torch.compile as a recipe field: backends, budgets, refusals."""

import gc

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model

import snugfit
from snugfit import InputError, Recipe, RecipeError, SnugfitWarning


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


def test_unknown_backend():
    with pytest.raises(InputError, match="compile is 'inductr', which is no backend here; did you mean 'inductor'"):
        snugfit.prepare(make_model("mlp"), Recipe(compile="inductr"), device="cpu")


@pytest.mark.parametrize("name", ["torchscript", "jit"])
def test_torchscript_is_refused_with_the_reason(name):
    with pytest.raises(RecipeError, match="TorchScript is deprecated in torch and saves no training memory"):
        Recipe(compile=name)


def test_budgets():
    with pytest.raises(RecipeError, match="compile_memory_budget needs compile"):
        Recipe(compile_memory_budget=0.5)
    with pytest.raises(RecipeError, match="share from 0 to 1"):
        Recipe(compile="inductor", compile_memory_budget=1.5)
    with pytest.warns(SnugfitWarning, match="no effect with compile='aot_eager'"):
        snugfit.prepare(make_model("mlp"), Recipe(compile="aot_eager", compile_memory_budget=0.5), device="cpu")


def _kept(budget):
    torch._dynamo.reset()
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    model = make_model("mlp", torch.float32)
    trainer = snugfit.prepare(
        model,
        Recipe(compile="aot_eager_decomp_partition", compile_memory_budget=budget),
        loss=cross_entropy,
        device="cpu",
    )
    batch = make_batches("mlp", 64, 1, torch.float32)[0]
    trainer.step(batch)
    with (
        trainer._passes.techniques[-1].around_forward(),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        loss = cross_entropy(model(batch[0]), batch)
    own = {weight.data_ptr() for weight in model.parameters()}
    size = sum(tensor.untyped_storage().nbytes() for pointer, tensor in kept.items() if pointer not in own)
    loss.backward()
    return size


def test_a_smaller_budget_keeps_fewer_bytes():
    assert _kept(0.1) < 0.7 * _kept(1.0)


def test_a_ragged_last_batch():
    model, plain = make_model("mlp"), make_model("mlp")
    trainer = snugfit.prepare(model, Recipe(compile="aot_eager"), loss=cross_entropy, device="cpu")
    reference = snugfit.prepare(plain, loss=cross_entropy, device="cpu")
    for samples in (8, 3, 8, 1):
        batch = make_batches("mlp", samples, 1)[0]
        assert torch.isclose(trainer.step(batch), reference.step(batch), rtol=1e-12)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-10)


def test_lost_updates_are_watched_under_compile():
    model = make_model("mlp", torch.float32)
    trainer = snugfit.prepare(
        model, Recipe(compile="aot_eager", precision="bf16-true"), loss=cross_entropy, device="cpu", lr=1e-7
    )
    with pytest.warns(SnugfitWarning, match="lost to rounding"):
        for batch in make_batches("mlp", 8, 3, torch.float32):
            trainer.step(batch)


def test_what_tracing_leaves_keeps_no_activations():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=8, n_layer=1, n_head=2, n_positions=8, vocab_size=37, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    trainer = snugfit.prepare(GPT2LMHeadModel(config), Recipe(compile="aot_eager"), device="cpu")
    ids = torch.zeros(3, 8, dtype=torch.long)
    gc.collect()
    gc.disable()  # a run's collector would come sooner or later
    try:
        trainer.step({"input_ids": ids, "labels": ids})
        assert [one for one in gc.get_objects() if type(one) is torch.Tensor and one.shape == (3, 8, 37)] == []
    finally:
        gc.enable()
