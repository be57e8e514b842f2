"""Weights of a directory: read in place in the final dtype, heads replaced, and what we save loads in transformers."""

import json
import shutil

import pytest
import torch

pytest.importorskip("transformers")
from text_models import BERT, LLAMA, build, config_file

from snugfit.errors import InputError, SnugfitWarning
from snugfit.workloads import hf_files
from snugfit.workloads.models import build_model
from snugfit.workloads.text.tokenizer import byte_tokenizer, load_tokenizer
from snugfit.workloads.weights_file import save_model

TIED_MOE = {
    **{key: LLAMA[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")},
    **{"model_type": "mixtral", "num_key_value_heads": 2, "vocab_size": 259, "max_position_embeddings": 64},
    **{"num_local_experts": 3, "tie_word_embeddings": True, "architectures": ["MixtralForCausalLM"]},
}


@pytest.fixture
def saved(tmp_path):
    """A small Llama in transformers' own format."""
    model = build(LLAMA, seed=5)
    model.save_pretrained(tmp_path / "llama")
    return model, tmp_path / "llama"


@pytest.mark.parametrize("init", ["host", "device", "meta"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_values_are_those_of_the_directory(saved, init, dtype):
    model, folder = saved
    loaded = build_model(f"hf:{folder}", weights="DEFAULT", init=init, dtype=dtype)
    assert loaded.training and loaded.config.use_cache is False
    expected = model.state_dict()
    for name, value in loaded.state_dict().items():
        assert value.dtype == (dtype or torch.float32) and torch.equal(value, expected[name].to(value.dtype)), name


def test_shards_are_read_through_their_index(tmp_path):
    model = build(LLAMA, seed=5)
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    assert (tmp_path / "model.safetensors.index.json").is_file() and not (tmp_path / "model.safetensors").exists()
    assert hf_files.holds_weights(str(tmp_path))
    loaded = build_model(f"hf:{tmp_path}", weights="DEFAULT")
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())
    next(tmp_path.glob("model-00002*")).unlink()
    with pytest.raises(InputError, match="cannot be read"):
        build_model(f"hf:{tmp_path}", weights="DEFAULT")


def test_a_directory_has_weights_and_its_config_file_has_none(saved):
    _, folder = saved
    assert hf_files.holds_weights(str(folder)) and not hf_files.holds_weights(str(folder / "config.json"))
    (folder / "model.safetensors").unlink()
    assert not hf_files.holds_weights(str(folder))
    with pytest.raises(InputError, match="has no weights"):
        build_model(f"hf:{folder}", weights="DEFAULT")
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match="save_pretrained, which writes safetensors"):
        hf_files.holds_weights(str(folder))
    assert not hf_files.holds_weights("nobody/no-such-model")


def test_head_for_another_number_of_labels_is_fresh_and_said(tmp_path):
    build(BERT, classes=3, seed=5).save_pretrained(tmp_path)
    with pytest.warns(SnugfitWarning, match=r"classifier\.bias, classifier\.weight .*fresh values"):
        loaded = build_model(f"hf:{tmp_path}", weights="DEFAULT", task="text-classification", num_classes=5)
    assert loaded.classifier.weight.shape == (5, 32)
    expected = build(BERT, classes=3, seed=5).state_dict()
    body = {name: value for name, value in loaded.state_dict().items() if not name.startswith("classifier")}
    assert body and all(torch.equal(value, expected[name]) for name, value in body.items())
    same = build_model(f"hf:{tmp_path}", weights="DEFAULT", task="text-classification", num_classes=3)
    assert torch.equal(same.classifier.weight, expected["classifier.weight"])


def test_weights_of_another_model_are_refused(saved):
    _, folder = saved
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 64}))
    with pytest.raises(InputError, match="do not fit its config"):
        build_model(f"hf:{folder}", weights="DEFAULT")
    (folder / "config.json").write_text(json.dumps(config))
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(InputError, match="cannot be read"):
        build_model(f"hf:{folder}", weights="DEFAULT")


@pytest.mark.parametrize("config", [LLAMA, TIED_MOE], ids=["llama", "tied experts"])
def test_what_we_save_loads_in_transformers(tmp_path, config):
    from transformers import AutoModelForCausalLM

    model = build_model(f"hf:{config_file(tmp_path, config)}", dtype=torch.bfloat16)
    (tmp_path / "run").mkdir()
    save_model(tmp_path / "run" / "model.safetensors", model.state_dict())
    hf_files.save_beside(model, tmp_path / "run", use_cache=True, tokenizer=byte_tokenizer())
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.dtype == torch.bfloat16 and loaded.config.use_cache is True
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in model.state_dict().items())
    again = load_tokenizer(tmp_path / "run", model="hf:run", pretrained=True)
    assert again("hi")["input_ids"] == [107, 108, 1]


def test_tokenizers(saved, tmp_path):
    _, folder = saved
    assert load_tokenizer(folder, model="hf:x", pretrained=False)("é")["input_ids"] == [198, 172, 1]
    with pytest.raises(InputError, match="has weights and no tokenizer"):
        load_tokenizer(folder, model="hf:x", pretrained=True)
    byte_tokenizer().save_pretrained(folder)
    assert len(load_tokenizer(folder, model="hf:x", pretrained=True)) == 259
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    (folder / "config.json").write_text(json.dumps(BERT))
    with pytest.raises(InputError, match="its vocabulary is missing"):
        load_tokenizer(folder, model="hf:x", pretrained=False)
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"\n\x10sentence pieces" * 20)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(InputError, match=r"cannot be read from tokenizer\.model: .*pip install sentencepiece"):
        load_tokenizer(folder, model="hf:x", pretrained=False)


def cached(cache, name, *files):
    """Lays files into a cache as the hub's library does."""
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    for file in files:
        shutil.copy(file, folder / "snapshots" / "abc" / file.name)


def test_names_of_the_hub_are_read_from_the_local_cache(saved, tmp_path, monkeypatch):
    model, folder = saved
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    cached(tmp_path / "cache", "some/llama", folder / "config.json", folder / "model.safetensors")
    loaded = build_model("hf:some/llama", weights="DEFAULT")
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())
    assert hf_files.holds_weights("some/llama")
    cached(tmp_path / "cache", "some/config", folder / "config.json")
    assert build_model("hf:some/config").config.hidden_size == 32
    with pytest.raises(InputError, match="in the local cache without its weights"):
        hf_files.holds_weights("some/config")
    with pytest.raises(InputError, match="nor in the local cache"):
        build_model("hf:some/other")


def test_a_name_that_cannot_be_fetched_is_one_message(monkeypatch):
    def no_network(*_, **__):
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.snapshot_download", no_network)
    with pytest.raises(
        InputError, match="'hf:some/model' cannot be fetched: ConnectionError: Name or service not known"
    ):
        hf_files.fetch("some/model")
    hf_files.fetch("./a/local/path")
