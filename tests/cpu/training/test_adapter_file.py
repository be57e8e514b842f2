"""Adapters on disk: peft reads them, we read them back, and what is wrong with them is said."""

import json

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model
from text_models import MIXTURES, build

import snugfit
from snugfit import InputError, Recipe

peft = pytest.importorskip("peft", reason="adapters need peft")


def tiny(task, **changes):
    import transformers

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 50,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if task == "causal-lm":
            config = transformers.LlamaConfig(**sizes, use_cache=False, tie_word_embeddings=False, **changes)
            return transformers.LlamaForCausalLM(config)
        return transformers.BertForSequenceClassification(transformers.BertConfig(**sizes, num_labels=3, **changes))


def tokens(task):
    ids = torch.randint(0, 50, (4, 12), generator=torch.Generator().manual_seed(1))
    labels = ids if task == "causal-lm" else torch.tensor([0, 1, 2, 0])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def trainer_of(task, **recipe):
    trainer = snugfit.prepare(tiny(task), Recipe(**recipe), lr=1e-2, device="cpu")
    for _ in range(3):
        trainer.step(tokens(task))
    return trainer


def trained(task, **recipe):
    return trainer_of(task, **recipe).model.eval()


@pytest.mark.parametrize("kind", ["lora", "rslora", "dora"])
@pytest.mark.parametrize("task", ["causal-lm", "text-classification"])
def test_peft_loads_it(task, kind, tmp_path):
    model = trained(task, adapter=kind, adapter_alpha=8.0)
    with torch.no_grad():
        expected = model(**tokens(task)).logits
    snugfit.save_adapter(model, tmp_path / "adapter")
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["task_type"] == {"causal-lm": "CAUSAL_LM", "text-classification": "SEQ_CLS"}[task]
    theirs = peft.PeftModel.from_pretrained(tiny(task), tmp_path / "adapter").eval()
    with torch.no_grad():
        assert torch.equal(theirs(**tokens(task)).logits, expected)
        merged = theirs.merge_and_unload()
        torch.testing.assert_close(merged(**tokens(task)).logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("targets", ["all-linear", ("*",), ("*experts.down_proj",)])
def test_peft_loads_what_is_beside_experts(name, targets, tmp_path):
    """The experts' own layers, shared ones and dense ones are told apart, also where peft goes by their names."""
    ids = torch.randint(0, 200, (2, 16), generator=torch.Generator().manual_seed(1))
    losses, logits = [], []
    model = build(MIXTURES[name])
    trainer = snugfit.prepare(
        model, Recipe(adapter="lora", adapter_rank=3, adapter_targets=targets), lr=1e-2, device="cpu"
    )
    before = adapted(model)
    losses = [float(trainer.step({"input_ids": ids, "labels": ids})) for _ in range(3)]
    assert losses[-1] < losses[0]
    snugfit.save_adapter(model, tmp_path)
    theirs = peft.PeftModel.from_pretrained(build(MIXTURES[name]), tmp_path)
    ours = build(MIXTURES[name])
    snugfit.load_adapter(ours, tmp_path)
    assert adapted(ours) == before
    for one in (model, theirs, ours):
        with torch.no_grad():
            logits.append(one.eval()(input_ids=ids).logits)
    snugfit.merge_adapter(ours)
    with torch.no_grad():
        logits.append(ours(input_ids=ids).logits)
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], rtol=0, atol=2e-5)
    assert list(ours.state_dict()) == list(build(MIXTURES[name]).state_dict())


def adapted(model):
    return {name for name, _ in model.named_parameters() if "lora_A" in name}


def test_it_loads_back_and_trains_on(tmp_path):
    model = trained("text-classification", adapter="dora")
    snugfit.save_adapter(model, tmp_path)
    other = tiny("text-classification")
    snugfit.load_adapter(other, tmp_path)
    state = model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in other.state_dict().items())
    assert {name for name, weight in other.named_parameters() if weight.requires_grad} == {
        name for name, weight in model.named_parameters() if weight.requires_grad
    }
    trainer = snugfit.prepare(other, Recipe(adapter="dora", checkpoint="all"), lr=1e-2, device="cpu")
    trainer.step(tokens("text-classification"))
    with pytest.raises(InputError, match="with adapter=dora"):
        snugfit.prepare(other, Recipe(adapter="lora"), device="cpu")


def test_what_peft_has_written_loads(tmp_path):
    config = peft.LoraConfig(r=4, target_modules=["query"], modules_to_save=["classifier"], init_lora_weights=False)
    theirs = peft.get_peft_model(tiny("text-classification"), config).eval()
    theirs.save_pretrained(tmp_path)
    ours = tiny("text-classification")
    snugfit.load_adapter(ours, tmp_path)
    with torch.no_grad():
        batch = tokens("text-classification")
        assert torch.equal(ours.eval()(**batch).logits, theirs(**batch).logits)


@pytest.mark.parametrize("quantize", ["nf4", "int8"])
def test_an_adapter_of_quantised_weights_loads_onto_the_full_model_and_merges(quantize, tmp_path):
    pytest.importorskip("bitsandbytes", reason="nf4 needs bitsandbytes")
    trainer = trainer_of("causal-lm", adapter="lora", quantize=quantize)
    trainer.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "config.json"]
    model = trainer.model.eval()
    full = tiny("causal-lm")
    snugfit.load_adapter(full, tmp_path / "adapter")
    with torch.no_grad():
        near, batch = full.eval()(**tokens("causal-lm")).logits, tokens("causal-lm")
        snugfit.merge_adapter(full)
        torch.testing.assert_close(full(**batch).logits, near, rtol=0, atol=1e-5)
        torch.testing.assert_close(near, model(**batch).logits, rtol=0, atol=0.3)


def test_a_vision_model(tmp_path):
    model, batch = make_model("vit", torch.float32), make_batches("vit", 6, 1, torch.float32)[0]
    trainer = snugfit.prepare(model, Recipe(adapter="lora"), loss=cross_entropy, lr=1e-2, device="cpu")
    trainer.step(batch)
    expected = model.eval()(batch[0])
    trainer.save(tmp_path)
    other = make_model("vit", torch.float32).eval()
    snugfit.load_adapter(other, tmp_path / "adapter")
    assert torch.equal(other(batch[0]), expected)
    from safetensors.torch import load_file

    plain = make_model("vit", torch.float32).eval()
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    torch.testing.assert_close(plain(batch[0]), expected, rtol=0, atol=1e-5)


def test_bad_input(tmp_path):
    plain = tiny("causal-lm")
    with pytest.raises(InputError, match="no adapters to save"):
        snugfit.save_adapter(plain, tmp_path)
    with pytest.raises(InputError, match="no adapters to merge"):
        snugfit.merge_adapter(plain)
    with pytest.raises(InputError, match=r"adapter_config\.json is missing"):
        snugfit.load_adapter(plain, tmp_path)
    snugfit.save_adapter(trained("causal-lm", adapter="lora"), tmp_path)
    with pytest.raises(InputError, match=r"does not fit this model: it has no layer 'model\.layers\.0"):
        snugfit.load_adapter(tiny("text-classification"), tmp_path)
    with pytest.raises(InputError, match="another size"):
        snugfit.load_adapter(tiny("causal-lm", num_key_value_heads=1), tmp_path)
    assert not any("lora_" in name for name in plain.state_dict())
    with pytest.raises(InputError, match="carries adapters already"):
        model = trained("causal-lm", adapter="lora")
        snugfit.load_adapter(model, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "peft_type": "LOHA"}))
    with pytest.raises(InputError, match="LOHA"):
        snugfit.load_adapter(plain, tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(InputError, match="not understood"):
        snugfit.load_adapter(plain, tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"cut short")
    with pytest.raises(InputError, match="damaged or cut short"):
        snugfit.load_adapter(plain, tmp_path)
