"""What models of transformers are trained for: the task from the config, and a batch that the model learns from."""

import json

import pytest
import torch

from snugfit.cli.groups import ShapeOptions
from snugfit.errors import InputError
from snugfit.fields import field_docs
from snugfit.workloads import hf
from snugfit.workloads.hf import tasks_of
from snugfit.workloads.model_batches import batch_for, task_of
from snugfit.workloads.models import build_model
from snugfit.workloads.tasks import TASKS

transformers = pytest.importorskip("transformers")

ONE_OF_EACH = {
    "llama": "causal-lm",
    "bert": "masked-lm",
    "bert, classes": "text-classification",
    "bert, answers": "question-answering",
    "xlm-roberta, tokens": "token-classification",
    "t5": "seq2seq-lm",
    "whisper": "speech-to-text",
    "wav2vec2, ctc": "ctc",
    "audio spectrogram": "audio-classification",
    "clip": "contrastive",
    "vit": "image-classification",
    "segformer": "semantic-segmentation",
    "yolos": "object-detection",
    "videomae": "video-classification",
    "llava": "image-text-to-text",
}


@pytest.fixture
def spec_of(tmp_path):
    from benchmarks.zoo_models.transformers_models import CONFIGS

    def make(name, **changes):
        kind, architecture, fields, shape = CONFIGS[name]
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        config = {"model_type": kind, "architectures": [architecture], **fields, **changes}
        file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
        return f"hf:{file}", shape

    return make


def test_each_task_has_a_model_here_and_its_place_in_the_help():
    assert set(ONE_OF_EACH.values()) == set(TASKS)
    text = field_docs(ShapeOptions)["task"]
    assert all(f"{name}," in text or f"{name} " in text or f"{name}." in text for name in TASKS)


@pytest.mark.parametrize(("name", "task"), ONE_OF_EACH.items())
def test_a_model_learns_from_the_batch_of_its_task(spec_of, name, task):
    spec, shape = spec_of(name)
    assert task_of(spec, None) == task
    torch.manual_seed(0)
    model = build_model(spec, task=task)
    made = batch_for(model, spec, task, batch_size=2, device="cpu", **shape)
    bare = batch_for(model, spec, task, batch_size=2, **shape).batch
    output = model(**made.batch) if isinstance(made.batch, dict) else model(made.batch[0])
    loss = output.loss if made.task.loss is None else made.task.loss(output, made.batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert sum(weight.grad is not None for weight in model.parameters()) > len(list(model.parameters())) / 2
    shapes = torch.utils._pytree.tree_map(lambda value: getattr(value, "shape", value), made.batch)
    assert torch.utils._pytree.tree_map(lambda value: getattr(value, "shape", value), bare) == shapes


def test_a_decoder_begins_somewhere(spec_of):
    spec, shape = spec_of("t5", decoder_start_token_id=None)
    model = build_model(spec)
    assert torch.isfinite(model(**batch_for(model, spec, "seq2seq-lm", batch_size=2, device="cpu", **shape).batch).loss)


def test_a_kind_without_a_class_name_is_taken_for_what_it_was_made_for(spec_of):
    found = {name: task_of(spec_of(name, architectures=None)[0], None) for name in ONE_OF_EACH}
    natural = ("llama", "bert", "t5", "whisper", "wav2vec2, ctc", "clip", "vit", "yolos", "videomae", "llava")
    assert {name: found[name] for name in natural} == {name: ONE_OF_EACH[name] for name in natural}


def test_an_encoder_is_no_decoder_unless_its_config_says_so(spec_of):
    among = ("causal-lm", "text-classification")
    assert task_of(spec_of("bert")[0], None, among) == "text-classification"
    assert task_of(spec_of("bert", architectures=["BertLMHeadModel"], is_decoder=True)[0], None) == "causal-lm"
    assert tasks_of(transformers.BertConfig(is_decoder=True))[-1] == "masked-lm"


def test_a_kind_stands_for_its_own_sizes():
    assert hf.is_kind("llama") and not hf.is_kind("nobody/llama") and not hf.is_kind("lama")
    assert hf.load_config("t5").model_type == "t5"
    model = build_model("hf:vit", init="device", device="meta")
    assert batch_for(model, "hf:vit", "image-classification", batch_size=2).batch[0].shape == (2, 3, 224, 224)
    with pytest.raises(InputError, match="did you mean 'llama'"):
        hf.load_config("lama")


def test_what_nothing_says_is_named(spec_of):
    spec, _ = spec_of("segformer")
    model = build_model(spec)
    made = batch_for(model, spec, "semantic-segmentation", batch_size=2)
    assert made.batch["pixel_values"].shape == (2, 3, 224, 224) and "224" in made.assumed[0]
    assert not batch_for(model, spec, "semantic-segmentation", batch_size=2, image_size=64).assumed


def test_options_without_meaning_are_refused(spec_of):
    spec, _ = spec_of("bert")
    model = build_model(spec)
    for given in ({"image_size": 32}, {"frames": 4}):
        with pytest.raises(InputError, match="has no meaning for masked-lm"):
            batch_for(model, spec, "masked-lm", batch_size=2, **given)
    spec, _ = spec_of("vit")
    with pytest.raises(InputError, match="--seq-len has no meaning"):
        batch_for(build_model(spec), spec, "image-classification", batch_size=2, seq_len=8)
    with pytest.raises(InputError, match="no class in transformers for ctc"):
        task_of(spec, "ctc")


def test_an_image_takes_its_tokens_of_the_text(spec_of):
    spec, _ = spec_of("llava")
    model = build_model(spec)
    batch = batch_for(model, spec, "image-text-to-text", batch_size=2, seq_len=20, device="cpu").batch
    assert (batch["input_ids"] == 499).sum(dim=1).tolist() == [16, 16]
    with pytest.raises(InputError, match="an image alone takes 16 tokens"):
        batch_for(model, spec, "image-text-to-text", batch_size=2, seq_len=16)


def test_microbatches_of_detection_cut_images_and_objects(spec_of):
    from snugfit.workloads.tasks import objects

    spec, _ = spec_of("yolos")
    made = batch_for(build_model(spec), spec, "object-detection", batch_size=3, device="cpu")
    pieces = made.task.split(made.batch, 2)
    assert [len(piece["labels"]) for piece in pieces] == [2, 1] == [len(piece["pixel_values"]) for piece in pieces]
    assert sum(map(objects, pieces)) == objects(made.batch)
