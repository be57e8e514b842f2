"""`snugfit merge`: what it writes is the plain model that says what adapter and full weights say together."""

import json
from pathlib import Path

import pytest
import torch
from command_line import MODEL_FILE
from safetensors.torch import load_file

pytest.importorskip("transformers")
pytest.importorskip("peft", reason="adapters need peft")
pytest.importorskip("bitsandbytes", reason="nf4 needs bitsandbytes")
from peft import PeftModel
from text_models import BERT, LLAMA, build
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import snugfit
from snugfit.cli import main
from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.runs.merging import merge_run
from snugfit.workloads.text.tokenizer import byte_tokenizer
from snugfit.workloads.weights_file import save_model

WIDE = {"initializer_range": 0.3}
"""Weights so large that a model says many different words."""
GPT2 = {
    "model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 259, "n_positions": 64,
    "architectures": ["GPT2LMHeadModel"],
}  # fmt: skip
SHORT = "--samples 24 --batch-size 8 --seq-len 32 --max-steps 3 --lr 0.02 --run-dir run"
PROSE, TOPICS = f"train hf:base --data prose {SHORT}", f"train hf:base --data topics {SHORT}"
IMAGES = (
    "train model.py:build --data random --samples 96 --image-size 8 --batch-size 16 --max-steps 3 --lr 0.02 --run-dir run "
    "--weights start.safetensors --adapter lora --quantize int8"
)
PROMPT = torch.tensor([[72, 101, 108, 108]])


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def based(config, *, dtype=torch.float32, classes=None, shards="5GB", **changes):
    """Saves a model with random weights and its tokenizer as people have them."""
    model = build(config, seed=5, classes=classes, **WIDE, **changes).to(dtype)
    model.config.use_cache = True
    model.save_pretrained("base", max_shard_size=shards)
    byte_tokenizer().save_pretrained("base")
    return model


def run(line):
    assert main(line.split()) == 0


def tokens_of(model):
    with torch.no_grad():
        found = model.eval().generate(PROMPT, max_new_tokens=24, do_sample=False, use_cache=False, pad_token_id=0)
    assert len(set(found[0, 4:].tolist())) > 2
    return found


def beside(base="base", **told):
    """The full weights with the adapter beside them, as peft has it."""
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, **told), "run/adapter")


@pytest.mark.parametrize(
    ("quantize", "adapter"), [("nf4", "lora"), ("nf4", "dora"), ("int8", "rslora"), ("none", "lora"), ("none", "dora")]
)
def test_merged_and_beside_its_full_weights_an_adapter_says_the_same(here, capsys, quantize, adapter):
    plain = based(LLAMA)
    run(f"{PROSE} --adapter {adapter} --quantize {quantize} --adapter-rank 4")
    assert (here / "run" / "model.safetensors").exists() == (quantize == "none")
    capsys.readouterr()
    run("merge run -o merged --json")
    out = capsys.readouterr().out
    document = json.loads(out)
    assert document["adapter"] == adapter and document["merged_layers"] == 14 and document["output"] == "merged"
    assert set(document["files"]) == {path.name for path in Path("merged").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer_config.json"} <= set(document["files"])
    merged, info = AutoModelForCausalLM.from_pretrained("merged", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and merged.config.use_cache
    said = tokens_of(merged)
    assert said.equal(tokens_of(beside())) and not said.equal(tokens_of(plain))
    by_hand = AutoModelForCausalLM.from_pretrained("base")
    snugfit.load_adapter(by_hand, "run/adapter")
    snugfit.merge_adapter(by_hand)
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(merged.state_dict()[name], value, rtol=0, atol=1e-6)
    assert not list(here.glob(".writing-*"))


def test_full_weights_in_16_bits_stay_so_and_are_rounded_once(here):
    based(LLAMA, dtype=torch.bfloat16, shards="20KB", tie_word_embeddings=True)
    assert len(list(Path("base").glob("*.safetensors"))) > 2
    run(f"{PROSE} --adapter dora --quantize nf4 --precision bf16-true")
    run("merge run -o merged")
    stored = load_file("merged/model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.bfloat16}
    assert AutoModelForCausalLM.from_pretrained("merged").dtype == torch.bfloat16
    wide = beside(dtype=torch.float32).merge_and_unload().state_dict()
    assert stored.keys() == wide.keys()
    assert all(torch.equal(value, wide[name].bfloat16()) for name, value in stored.items())


def test_gpt2_whose_layers_lie_the_other_way(here):
    based(GPT2)
    run(f"{PROSE} --adapter lora --adapter-targets *.c_attn,*.c_fc,*.c_proj --quantize int8")
    run("merge run -o merged")
    merged, theirs = AutoModelForCausalLM.from_pretrained("merged").eval(), beside().eval()
    with torch.no_grad():
        torch.testing.assert_close(merged(PROMPT).logits, theirs(PROMPT).logits, rtol=0, atol=1e-4)


def test_names_that_transformers_changes_on_the_way_are_read_by_its_own_loader(here):
    based(LLAMA, tie_word_embeddings=True)
    stored = {name.removeprefix("model."): value for name, value in load_file("base/model.safetensors").items()}
    save_model(Path("base/model.safetensors"), stored)  # as a base model without a head is saved
    run(f"{PROSE} --adapter lora --quantize nf4")
    run("merge run -o merged")
    assert tokens_of(AutoModelForCausalLM.from_pretrained("merged")).equal(tokens_of(beside()))


def test_the_head_of_a_classifier_comes_with_the_adapter(here):
    based(BERT, classes=3)  # another number than the data has
    run(f"{TOPICS} --adapter lora --quantize int8")
    run("merge run -o merged")
    merged, info = AutoModelForSequenceClassification.from_pretrained("merged", output_loading_info=True)
    assert not info["missing_keys"] and merged.config.num_labels == 6 and merged.config.id2label[1] == "debugger"
    ours = AutoModelForSequenceClassification.from_pretrained("base", num_labels=6, ignore_mismatched_sizes=True).eval()
    snugfit.load_adapter(ours, "run/adapter")
    with torch.no_grad():
        torch.testing.assert_close(merged.eval()(PROMPT).logits, ours(PROMPT).logits, rtol=0, atol=1e-5)


def test_weights_that_were_replaced_since_are_refused_and_saved_otherwise_they_are_the_same(here, capsys):
    based(LLAMA)
    run(f"{PROSE} --adapter lora --quantize int8")
    run("merge run -o merged")
    model = based(LLAMA, shards="20KB")  # the same weights, in several files
    Path("base/model.safetensors").unlink(missing_ok=True)
    run("merge run -o again")
    assert Path("again/model.safetensors").read_bytes() == Path("merged/model.safetensors").read_bytes()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] += 1
    model.save_pretrained("base")
    capsys.readouterr()
    assert main(["merge", "run", "-o", "other"]) == 2
    said = capsys.readouterr().err
    assert "weights in 'base' are not those that the run in 'run' started from" in said and "Put those of then" in said
    assert not Path("other").exists()


def test_parts_that_were_drawn_and_packed_are_in_no_file(here, capsys):
    from transformers import AutoConfig, AutoModelForMaskedLM

    AutoModelForMaskedLM.from_config(AutoConfig.for_model(**BERT)).save_pretrained("base")  # has no pooler
    byte_tokenizer().save_pretrained("base")
    run(f"{TOPICS} --adapter lora --quantize int8")
    capsys.readouterr()
    assert main(["merge", "run", "-o", "merged"]) == 2
    said = capsys.readouterr().err
    assert "no values for bert.pooler.dense" in said and "in no file" in said and "Traceback" not in said
    assert not Path("merged").exists()


def test_a_model_of_ones_own_with_weights_from_a_file(here, monkeypatch):
    code = MODEL_FILE.replace("nn.BatchNorm2d(4)", "nn.GroupNorm(2, 4)")
    (here / "model.py").write_text(code)
    monkeypatch.syspath_prepend(here)
    space: dict = {}
    exec(code, space)
    torch.manual_seed(3)
    start = space["build"]()
    save_model(here / "start.safetensors", start.state_dict())
    run(IMAGES)
    found = merge_run(Path("run"), Path("merged"))
    assert found.files == ("model.safetensors",) and "start.safetensors" in found.weights
    snugfit.load_adapter(start, "run/adapter")
    merged = space["build"]().eval()
    merged.load_state_dict(load_file("merged/model.safetensors"), strict=True)
    images = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(merged(images), start.eval()(images), rtol=0, atol=1e-5)


def test_running_statistics_that_no_file_holds_are_refused(here, capsys):
    (here / "model.py").write_text(MODEL_FILE)
    space: dict = {}
    exec(MODEL_FILE, space)
    save_model(here / "start.safetensors", space["build"]().state_dict())
    run(IMAGES)
    assert main(["merge", "run", "-o", "merged"]) == 2
    assert "running statistics of 1" in capsys.readouterr().err


def test_a_layer_at_a_time_is_in_memory(here):
    based(LLAMA, hidden_size=256, intermediate_size=512, num_hidden_layers=12)
    run(f"{PROSE} --adapter lora --adapter-rank 1 --quantize nf4 --max-steps 1")
    whole, layer = Path("base/model.safetensors").stat().st_size, 256 * 512 * 4
    events = AllocatorEvents()
    warm_up()
    events.start()
    merge_run(Path("run"), Path("merged"))
    events.stop()
    assert events.peak_bytes < 8 * layer < whole / 6
