"""Whole weights from a loop of one's own: what `full_state_dict` and `save` give is what one process has learned."""

import json

import pytest
import torch
from safetensors.torch import load_file
from small_models import cross_entropy, make_batches, make_model
from text_models import build
from torch import nn

import snugfit
from snugfit import InputError, Recipe
from snugfit.workloads import weights_file

pytest.importorskip("transformers")
pytest.importorskip("peft", reason="adapters need peft")
import whole_weights_tasks
from peft import PeftModel
from transformers import AutoModelForCausalLM
from whole_weights_tasks import WIDE, batches, trainer_of

PROMPT = torch.tensor([[5, 9, 17, 3]])
SHARED = {
    "none": {},
    "full": {"shard": "full"},
    "gradients": {"shard": "gradients"},
    "offload_parameters": {"shard": "full", "offload_parameters": "all"},
    "lora": {"shard": "full", "adapter": "lora", "adapter_rank": 2},
    "dora, whole": {"adapter": "dora", "adapter_rank": 2},
    "nf4": {"shard": "full", "adapter": "lora", "adapter_rank": 2, "quantize": "nf4"},
}


def tokens_of(model):
    """What a model goes on with."""
    model.eval()
    with torch.no_grad():
        found = model.generate(PROMPT, max_new_tokens=24, do_sample=False, use_cache=False, pad_token_id=0)
    assert len(set(found[0, 4:].tolist())) > 2  # a model that says one word would agree with any other
    return found


def trained(fields, **more):
    trainer = trainer_of(fields, **more)
    for batch in batches():
        trainer.step(batch)
    return trainer


@pytest.mark.parametrize("case", SHARED)
def test_two_processes_save_what_one_learns(two, tmp_path, case):
    fields = SHARED[case]
    whole, nothing = two.do(whole_weights_tasks.saved, fields, str(tmp_path))
    assert nothing == {}
    alone = {name: value for name, value in fields.items() if name not in ("shard", "offload_parameters")}
    trainer = trained(alone)
    expected = trainer.full_state_dict()
    assert list(whole) == list(expected) == list(trainer.model.state_dict())
    for name, value in expected.items():
        assert type(whole[name]) is torch.Tensor and whole[name].dtype == value.dtype
        torch.testing.assert_close(whole[name], value, rtol=0, atol=1e-9, msg=name)
    trainer.save(tmp_path / "alone")
    names = {path.relative_to(tmp_path / "alone") for path in (tmp_path / "alone").rglob("*")}
    assert names == {path.relative_to(tmp_path / "model") for path in (tmp_path / "model").rglob("*")}
    assert not list(tmp_path.rglob(".writing-*"))
    assert json.loads((tmp_path / "model" / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    for path in (tmp_path / "alone").rglob("*.safetensors"):
        one, other = load_file(path), load_file(tmp_path / "model" / path.relative_to(tmp_path / "alone"))
        assert one.keys() == other.keys()
        assert all((one[name] - other[name]).abs().max() < 1e-9 for name in one)
    if case != "nf4":
        assert equal(load_file(tmp_path / "model.safetensors"), load_file(tmp_path / "model" / "model.safetensors"))
        assert tokens_of(AutoModelForCausalLM.from_pretrained(tmp_path / "model")).equal(tokens_of(trainer.model))
        if "adapter" not in fields:  # what was saved between two steps is that of one step less
            assert not equal(
                load_file(tmp_path / "between" / "model.safetensors"), load_file(tmp_path / "model.safetensors")
            )


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_what_cannot_be_written_is_one_message_in_every_process_and_training_goes_on(two, tmp_path):
    (tmp_path / "a file").write_text("")
    (said, loss), (heard, other) = two.do(whole_weights_tasks.refused, str(tmp_path))
    assert said == heard and "cannot be written" in said and "Give another path" in said
    assert loss == other > 0


def test_no_process_ever_holds_the_model(two, tmp_path):
    peaks = two.do(whole_weights_tasks.peak_of_a_save, str(tmp_path))
    assert (tmp_path / "wide.safetensors").stat().st_size > 64 * 2**20
    assert max(peaks) < 12 * 2**20  # a block of 4 MiB, twice while it is put together


@pytest.mark.parametrize("adapter", ["lora", "rslora", "dora"])
def test_merged_adapter_beside_its_model_and_the_trainers_own_say_the_same(tmp_path, adapter):
    trainer = trained({"adapter": adapter, "adapter_rank": 4, "adapter_alpha": 16.0}, dtype=torch.float32, tied=False)
    trainer.save(tmp_path / "out")
    own = tokens_of(trainer.model)
    assert not own.equal(tokens_of(build(WIDE, tie_word_embeddings=False)))
    assert own.equal(tokens_of(AutoModelForCausalLM.from_pretrained(tmp_path / "out")))
    beside = PeftModel.from_pretrained(build(WIDE, tie_word_embeddings=False), tmp_path / "out" / "adapter")
    assert own.equal(tokens_of(beside))


@pytest.mark.parametrize("adapter", ["lora", "rslora"])
def test_several_adapters_around_the_same_experts_are_all_merged(tmp_path, adapter):
    from transformers import MixtralConfig, MixtralForCausalLM

    def mixture():
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return MixtralForCausalLM(MixtralConfig(**sizes, **heads))

    ids = torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(1))
    recipe = Recipe(adapter=adapter, adapter_rank=4, adapter_targets="*")
    trainer = snugfit.prepare(mixture(), recipe, lr=1e-2, device="cpu")
    for _ in range(3):
        trainer.step({"input_ids": ids, "labels": ids})
    trainer.save(tmp_path / "out")
    own = trainer.model.eval()(input_ids=ids).logits
    assert not torch.allclose(own, mixture().eval()(input_ids=ids).logits, rtol=0, atol=1e-3)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    beside = PeftModel.from_pretrained(mixture(), tmp_path / "out" / "adapter").eval()
    for other in (merged, beside):
        torch.testing.assert_close(other(input_ids=ids).logits, own, rtol=0, atol=1e-5)


@pytest.mark.parametrize("adapter", ["none", "dora"])
def test_a_save_leaves_no_trace_in_training(tmp_path, adapter):
    one, other = (trainer_of({"adapter": adapter}, dtype=torch.float32) for _ in range(2))
    for batch in batches():
        assert torch.equal(one.step(batch), other.step(batch))
        before = torch.get_rng_state()
        one.save(tmp_path / "out")
        kept = one.full_state_dict()
        assert torch.equal(before, torch.get_rng_state())
        assert equal(kept, other.model.state_dict())
        assert not {value.data_ptr() for value in kept.values()} & {
            value.data_ptr() for value in one.model.state_dict().values()
        }
    assert equal(one.model.state_dict(), other.model.state_dict())
    assert "lora" not in str(list(load_file(tmp_path / "out" / "model.safetensors")))


def test_tied_weights_stay_tied_and_conv1d_merges(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=40, n_positions=32, use_cache=False)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(sizes)
    trainer = snugfit.prepare(
        model, Recipe(adapter="lora", adapter_targets="*.c_fc,*.c_proj,*.c_attn"), lr=0.05, device="cpu"
    )
    ids = torch.randint(0, 40, (4, 12))
    trainer.step({"input_ids": ids, "labels": ids})
    trainer.step({"input_ids": ids, "labels": ids})
    whole = trainer.full_state_dict()
    assert whole["lm_head.weight"] is whole["transformer.wte.weight"]
    trainer.save(tmp_path / "gpt2")
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path / "gpt2").eval()
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model.eval()(ids).logits, rtol=0, atol=1e-5)


def test_a_model_of_ones_own_loads_the_file_strictly(tmp_path):
    model, batch = make_model("vit", torch.float32), make_batches("vit", 6, 1, torch.float32)[0]
    trainer = snugfit.prepare(model, Recipe(adapter="rslora"), loss=cross_entropy, lr=1e-2, device="cpu")
    trainer.step(batch)
    trainer.save(tmp_path / "vit.safetensors")
    trainer.save(tmp_path / "vit")
    assert sorted(path.name for path in (tmp_path / "vit").iterdir()) == ["adapter", "model.safetensors"]
    plain = make_model("vit", torch.float32).eval()
    plain.load_state_dict(load_file(tmp_path / "vit.safetensors"), strict=True)
    torch.testing.assert_close(plain(batch[0]), model.eval()(batch[0]), rtol=0, atol=1e-5)


def test_a_layer_in_two_places_is_saved_merged_in_both(tmp_path):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6)
            self.again, self.head = self.one, nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.again(self.other(self.one(x))))

    torch.manual_seed(1)
    model = Twice()
    trainer = snugfit.prepare(
        model,
        Recipe(adapter="lora"),
        loss=lambda out, batch: out.square().mean(),
        optimizer="sgd",
        lr=1.0,
        device="cpu",
    )
    inputs = torch.randn(8, 6)
    for _ in range(3):
        trainer.step(inputs)
    trainer.save(tmp_path / "m.safetensors")
    plain = Twice()
    plain.load_state_dict(load_file(tmp_path / "m.safetensors"), strict=True)
    torch.testing.assert_close(plain(inputs), model(inputs), rtol=0, atol=1e-6)


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    trainer = trained({"adapter": "lora"}, dtype=torch.float32)
    trainer.save(tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    trainer.step(batches()[0])
    flush = weights_file.save_tensors

    def full(path, layout, tensors):
        if path.name == "model.safetensors":
            raise OSError(28, "No space left on device")
        flush(path, layout, tensors)

    monkeypatch.setattr("snugfit.training.whole_weights.save_tensors", full)
    with pytest.raises(InputError, match="No space left on device"):
        trainer.save(tmp_path / "out")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    monkeypatch.undo()
    trainer.save(tmp_path / "out")
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "out" / "model.safetensors").read_bytes() != before[tmp_path / "out" / "model.safetensors"]


def test_packed_weights_go_to_a_folder_and_what_is_no_tensor_is_named(tmp_path):
    trainer = trainer_of({"adapter": "lora", "quantize": "int8"}, dtype=torch.float32)
    with pytest.raises(InputError, match=r"are packed.*Give a folder"):
        trainer.save(tmp_path / "m.safetensors")

    class Counted(nn.Linear):
        def get_extra_state(self):
            return {"calls": 3}

        def set_extra_state(self, state):
            pass

    odd = snugfit.prepare(Counted(2, 2), loss=lambda out, batch: out.sum(), device="cpu")
    odd.step(torch.ones(2, 2))
    assert odd.full_state_dict()["_extra_state"] == {"calls": 3}
    with pytest.raises(InputError, match=r"'_extra_state' .* is a dict"):
        odd.save(tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())
