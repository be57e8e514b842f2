"""Models of transformers from a local config: what is built, and how mistakes are said. Nothing is downloaded."""

import json

import pytest
import torch

from snugfit.errors import InputError
from snugfit.workloads.model_batches import batch_for, task_of
from snugfit.workloads.model_shapes import token_limit, vocabulary_size
from snugfit.workloads.models import build_model
from snugfit.workloads.tasks import task_named

pytest.importorskip("transformers")

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
    "max_position_embeddings": 64, "torch_dtype": "bfloat16",
}  # fmt: skip
BERT = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture
def specs(tmp_path):
    for name, config in (("llama", LLAMA), ("bert", BERT)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    return {name: f"hf:{tmp_path / name}" for name in ("llama", "bert")}


def test_the_config_says_the_task(specs):
    assert task_of(specs["llama"], None) == "causal-lm"
    assert task_of(specs["bert"], None) == "masked-lm"
    assert task_of(specs["bert"], None, ("causal-lm", "text-classification")) == "text-classification"
    assert task_of(specs["llama"], "text-classification") == "text-classification"
    assert task_of("torchvision:resnet18", None) == "image-classification"


@pytest.mark.parametrize(
    ("name", "task"), [("llama", "causal-lm"), ("llama", "text-classification"), ("bert", "text-classification")]
)
def test_model_trains_on_its_batch(specs, name, task):
    model = build_model(f"{specs[name]}/config.json", task=task, num_classes=3)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32} and model.training
    made = batch_for(model, specs[name], task, batch_size=4, seq_len=16)
    assert made.batch["input_ids"].shape == (4, 16) and made.task.loss is None
    assert {value.device.type for value in made.batch.values()} == {"meta"}
    assert made.task.loss_weight == task_named(task).loss_weight
    real = batch_for(model, specs[name], task, batch_size=4, seq_len=16, device="cpu").batch
    output = model(**real)
    output.loss.backward()
    assert output.logits.shape == ((4, 16, 100) if task == "causal-lm" else (4, 3))
    assert getattr(output, "past_key_values", None) is None


def test_lengths_follow_the_model(specs):
    model = build_model(specs["llama"], device="meta", init="device")
    assert batch_for(model, specs["llama"], "causal-lm", batch_size=2).batch["input_ids"].shape == (2, 64)
    with pytest.raises(InputError, match="at most 64 tokens"):
        batch_for(model, specs["llama"], "causal-lm", batch_size=2, seq_len=65)


@pytest.mark.parametrize(
    ("form", "more"), [("full", set()), ("padded", {"attention_mask"}), ("packed", {"position_ids"})]
)
def test_batches_have_what_training_gives(specs, form, more):
    model = build_model(specs["llama"], device="meta", init="device")
    batch = batch_for(model, specs["llama"], "causal-lm", batch_size=2, seq_len=8, form=form).batch
    assert batch.keys() == {"input_ids", "labels"} | more
    assert {(value.shape, value.dtype, value.device.type) for value in batch.values()} == {((2, 8), torch.long, "meta")}


def test_positions_that_are_kept_for_padding_do_not_count(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**BERT, "model_type": "roberta", "pad_token_id": 1}))
    model = build_model(f"hf:{tmp_path}", task="text-classification", device="meta", init="device")
    assert token_limit(model) == 62 and vocabulary_size(model) == 100
    assert token_limit(torch.nn.Linear(2, 2)) is None and vocabulary_size(torch.nn.Linear(2, 2)) is None


def test_model_arguments_are_fields_of_the_config(specs):
    model = build_model(specs["llama"], model_args={"num_hidden_layers": 1}, device="meta", init="device")
    assert len(model.model.layers) == 1
    with pytest.raises(InputError, match="did you mean 'num_hidden_layers'"):
        build_model(specs["llama"], model_args={"num_hidden_layer": 1})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read as JSON"),
        ('{"hidden_size": 3}', "no model_type"),
        ('{"model_type": "lama"}', "did you mean 'llama'"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "is not understood|could not be built"),
    ],
)
def test_bad_configs_are_said(tmp_path, text, says):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=says):
        build_model(f"hf:{tmp_path}")


def test_names_are_not_downloaded(specs):
    with pytest.raises(InputError, match="nothing is downloaded unless asked for"):
        build_model("hf:nobody/no-such-model")
    with pytest.raises(InputError, match="does not exist"):
        build_model("hf:./nowhere")
    with pytest.raises(InputError, match="did you mean 'causal-lm'"):
        task_of(specs["llama"], "causal-ml")
    with pytest.raises(InputError, match="takes images"):
        task_of("timm:resnet10t", "causal-lm")
