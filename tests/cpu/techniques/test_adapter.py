"""Adapters: what is trained, what it costs, how they compose, and what stays of the plain model."""

import copy

import pytest
import torch
from small_models import MODELS, cross_entropy, make_batches, make_model
from torch import nn

import snugfit
from snugfit import InputError, Recipe
from snugfit.techniques.adapter.layers import adapted_layers

pytest.importorskip("peft", reason="adapters need peft")

KINDS = ("lora", "rslora", "dora")


def trainer_of(model, *, recipe=None, optimizer="adamw", **settings):
    chosen = Recipe(**{"adapter": "lora", "adapter_rank": 2, **(recipe or {})})
    return snugfit.prepare(
        model, chosen, loss=cross_entropy, optimizer=optimizer, device="cpu", **{"lr": 1e-2, **settings}
    )


def tiny_llama(tied=False, **changes):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 50,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(LlamaConfig(**{**sizes, "tie_word_embeddings": tied, "use_cache": False, **changes}))


def tiny_bert():
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return BertForSequenceClassification(BertConfig(**sizes, vocab_size=50, num_labels=3))


def tokens(labels=True):
    ids = torch.randint(0, 50, (4, 12), generator=torch.Generator().manual_seed(1))
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": ids if labels else torch.tensor([0, 1, 2, 0]),
    }


def written_out(x, base, kind, a, b, magnitude, alpha=16.0):
    """The papers' formulas, on whole matrices."""
    rank = a.shape[0]
    delta = (alpha / rank**0.5 if kind == "rslora" else alpha / rank) * (b @ a)
    weight = base.weight + delta
    if kind == "dora":
        weight = magnitude[:, None] * weight / weight.norm(dim=1, keepdim=True)
    return x @ weight.T + base.bias


@pytest.mark.parametrize("kind", KINDS)
def test_the_layer_computes_what_the_paper_says(kind):
    model = make_model("mlp")
    trainer_of(model, recipe={"adapter": kind})
    layer = adapted_layers(model)["blocks.1.layers.0"]
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in layer.parameters():
            if weight.requires_grad:
                weight += torch.randn(weight.shape, generator=generator, dtype=weight.dtype) / 3
    parts = {name: part["default"].weight for name, part in (("a", layer.lora_A), ("b", layer.lora_B))}
    magnitude = layer.lora_magnitude_vector["default"].weight if kind == "dora" else None
    x = torch.randn(7, 24, generator=generator, dtype=torch.float64)
    expected = written_out(x, layer.base_layer, kind, **parts, magnitude=magnitude)
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["mlp", "vit", "tied"])
def test_merged_equals_unmerged(name, kind):
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model, batches = make_model(name, dtype), make_batches(name, 6, 3, dtype)
        trainer = trainer_of(model, recipe={"adapter": kind})
        before = model.eval()(batches[0][0])
        for batch in batches:
            trainer.step(batch)
        model.eval()
        unmerged = model(batches[0][0])
        assert (unmerged - before).abs().max() > 1e-4, "the adapters learned nothing"
        snugfit.merge_adapter(model)
        torch.testing.assert_close(model(batches[0][0]), unmerged, rtol=0, atol=tolerance)
        assert list(model.state_dict()) == list(make_model(name, dtype).state_dict())
        assert all(weight.requires_grad for weight in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_training_starts_from_the_model_as_it_was(kind):
    model, batch = make_model("mlp"), make_batches("mlp", 6, 1)[0]
    plain = make_model("mlp")(batch[0])
    trainer_of(model, recipe={"adapter": kind})
    torch.testing.assert_close(model(batch[0]), plain, rtol=0, atol=1e-12)


def test_frozen_weights_have_no_gradient_and_no_state():
    model, batch = make_model("mlp"), make_batches("mlp", 6, 1)[0]
    plain = copy.deepcopy(model.state_dict())
    trainer = trainer_of(model, recipe={"checkpoint": "all"})
    seen = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            weight.register_post_accumulate_grad_hook(
                lambda weight, name=name: seen.__setitem__(name, weight.grad.shape)
            )
    loss = cross_entropy(model(batch[0]), batch)
    loss.backward()
    assert all((weight.grad is not None) == weight.requires_grad for weight in model.parameters())
    trainer.step(batch)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained == set(seen) == {name for name in trained if "lora_" in name or name.startswith("head.")}
    state = trainer.state_dict()["optimizer"]
    assert len(state["state"]) == len(trained)
    changed = {
        name for name, value in model.state_dict().items() if name in plain and not torch.equal(value, plain[name])
    }
    assert changed == {"head.weight", "head.bias"}


def test_nothing_is_drawn_and_the_seed_decides():
    before = torch.get_rng_state()
    first, second, other = (make_model("mlp") for _ in range(3))
    trainer_of(first), trainer_of(second), trainer_of(other, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    same = [torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)]
    assert all(same)
    key = "stem.lora_A.default.weight"
    assert not torch.equal(first.state_dict()[key], other.state_dict()[key])


def test_keys_of_the_plain_model_stay():
    model, plain = make_model("vit"), make_model("vit").state_dict()
    trainer_of(model)
    state = model.state_dict()
    extra = [name for name in state if name not in plain]
    assert [name for name in state if name in plain] == list(plain)
    assert extra and all(".lora_" in name for name in extra)
    wanted = {name: value + 1 for name, value in state.items()}
    model.load_state_dict(wanted)
    assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())
    missing, unexpected = model.load_state_dict(plain, strict=False)
    assert set(missing) == set(extra) and not unexpected


PAIRS = {
    "checkpoint": {"checkpoint": "all"},
    "selective": {"checkpoint": "selective"},
    "offload activations": {"checkpoint": "all", "offload_activations": "checkpoints"},
    "microbatch": {"microbatch_size": 2},
    "step in backward": {"step_in_backward": True},
    "offload optimizer": {"offload_optimizer": True},
    "for-loop": {"optimizer_impl": "for-loop"},
}


@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize("pair", PAIRS)
def test_exact_techniques_stay_exact(pair, kind):
    def trained(recipe):
        model = make_model("mlp")
        trainer = trainer_of(model, recipe={"adapter": kind, **recipe}, optimizer="sgd", lr=0.1)
        for batch in make_batches("mlp", 6, 3):
            trainer.step(batch)
        trainer.finish()
        return model.state_dict()

    for (name, one), other in zip(trained({}).items(), trained(PAIRS[pair]).values(), strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize(
    "recipe",
    [
        {"precision": "bf16-mixed"},
        {"precision": "bf16-true", "stochastic_rounding": True},
        {"precision": "16-mixed", "checkpoint": "all"},
        {"adapter_dropout": 0.1, "microbatch_size": 3, "accumulate_dtype": "fp32", "precision": "bf16-true"},
        {"inplace": True, "attention": "eager"},
    ],
    ids=str,
)
def test_it_learns_with(recipe):
    model, batch = make_model("vit", torch.float32), make_batches("vit", 6, 1, torch.float32)[0]
    trainer = trainer_of(model, recipe={**recipe, "adapter_rank": 4}, lr=1e-2)
    torch.manual_seed(0)  # of the masks
    losses = [float(trainer.step(batch)) for _ in range(15)]
    trainer.finish()
    assert sum(losses[-5:]) / 5 < 0.8 * losses[0], losses
    kinds = {weight.dtype for weight in model.parameters() if weight.requires_grad}
    assert kinds == {torch.bfloat16 if recipe.get("precision") == "bf16-true" else torch.float32}


def test_resume_is_bitwise():
    def start():
        model = make_model("vit", torch.float32)
        return model, trainer_of(model, recipe={"adapter": "dora", "adapter_dropout": 0.2})

    batches = make_batches("vit", 6, 4, torch.float32)
    model, trainer = start()
    torch.manual_seed(0)
    for batch in batches[:2]:
        trainer.step(batch)
    saved, random = copy.deepcopy(trainer.state_dict()), torch.get_rng_state()
    for batch in batches[2:]:
        trainer.step(batch)
    other_model, other = start()
    other.load_state_dict(saved)
    torch.set_rng_state(random)
    for batch in batches[2:]:
        other.step(batch)
    for (name, one), two in zip(model.state_dict().items(), other_model.state_dict().values(), strict=True):
        assert torch.equal(one, two), name


def test_prepared_again():
    model, batch = make_model("mlp"), make_batches("mlp", 6, 1)[0]
    first = trainer_of(model)
    first.step(batch)
    state = copy.deepcopy(model.state_dict())
    second = trainer_of(model, recipe={"checkpoint": "all"}, freeze="stem.*")
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    second.step(batch)
    with pytest.raises(InputError, match=r"carries adapters already, with adapter_rank=2.*merge_adapter"):
        trainer_of(model, recipe={"adapter_rank": 3})
    plain = snugfit.prepare(model, Recipe(), loss=cross_entropy, device="cpu")
    assert len(plain.state_dict()["optimizer"]["param_groups"][0]["params"]) == sum(
        weight.requires_grad for weight in model.parameters()
    )
    snugfit.merge_adapter(model)
    with pytest.raises(InputError, match="prepared again"):
        plain.step(batch)


def test_blocks_are_those_of_the_plain_model():
    from snugfit.techniques.blocks import find_blocks

    for name in MODELS:
        model = make_model(name)
        before = list(find_blocks(model))
        if name != "cnn":
            trainer_of(model)
        assert list(find_blocks(model)) == before


def test_targets():
    model = tiny_llama()
    trainer_of(model, recipe={"adapter_targets": "*.q_proj,*.layers.1.mlp.*"})
    names = [name.removeprefix("model.layers.") for name in adapted_layers(model)]
    assert names == ["0.self_attn.q_proj", "1.self_attn.q_proj", "1.mlp.gate_proj", "1.mlp.up_proj", "1.mlp.down_proj"]
    assert not model.lm_head.weight.requires_grad and not model.model.embed_tokens.weight.requires_grad


def test_names_that_end_alike_are_told_apart():
    model = nn.Sequential()
    model.add_module("fc1", nn.Linear(12, 12))
    model.add_module("inner", nn.Sequential())
    model.inner.add_module("fc1", nn.Linear(12, 12))
    model.add_module("out", nn.Linear(12, 5))
    trainer_of(model.double(), recipe={"adapter_targets": "fc1"})
    assert list(adapted_layers(model)) == ["fc1"]


def test_output_head():
    with_head = tiny_llama()
    trainer_of(with_head, recipe={"adapter_head": True})
    assert "lm_head" in adapted_layers(with_head)
    with pytest.raises(InputError, match="'lm_head' shares its weight with the embedding"):
        trainer_of(tiny_llama(tied=True), recipe={"adapter_head": True})
    with pytest.raises(InputError, match=r"no language model's output head.*classifier is trained as it is"):
        trainer_of(tiny_bert(), recipe={"adapter_head": True})


def test_a_classifier_is_trained_as_it_is():
    model = tiny_bert()
    trainer_of(model)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad and "lora_" not in name}
    assert trained == {"classifier.weight", "classifier.bias"}
    frozen = tiny_bert()
    trainer_of(frozen, freeze="classifier.bias")
    assert frozen.classifier.weight.requires_grad and not frozen.classifier.bias.requires_grad


def test_torchs_own_encoder_layers_reach_evaluation():
    layer = nn.TransformerEncoderLayer(12, 2, 24, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(36, 5))
    trainer = snugfit.prepare(model, Recipe(adapter="lora"), loss=cross_entropy, lr=0.05, device="cpu")
    assert not any("self_attn" in name for name in adapted_layers(model))  # those weights are read, never called
    batch = (torch.randn(4, 3, 12), torch.randint(0, 5, (4,)))
    for _ in range(3):
        trainer.step(batch)
    with torch.no_grad():
        in_training = model(batch[0])
        torch.testing.assert_close(model.eval()(batch[0]), in_training, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "targets, parts",
    [
        ("*.q_prog", ["did you mean '*.q_proj'?", "*.down_proj"]),
        ("lm_head", ["matches only the head 'lm_head', which needs adapter_head"]),
        ("q_proj", ["did you mean '*.q_proj'?"]),
    ],
)
def test_a_pattern_that_matches_nothing(targets, parts):
    with pytest.raises(InputError) as caught:
        trainer_of(tiny_llama(), recipe={"adapter_targets": targets})
    assert all(part in str(caught.value) for part in parts), caught.value


def test_models_without_linear_layers():
    with pytest.raises(InputError, match="CNN has no linear layer beside its head head"):
        trainer_of(make_model("cnn"))
    with pytest.raises(InputError, match="has no linear layer, and adapters"):
        trainer_of(nn.Sequential(nn.Conv2d(3, 5, 3)))
