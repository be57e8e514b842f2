"""Weights that come one by one give the values of those that come together, and the host never holds the model."""

import pytest
import torch
from text_models import BERT, LLAMA, MIXTURES, build, config_file

import snugfit
from snugfit.fake_device.personality import Personality
from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.recipe import Recipe
from snugfit.recording.trace import ALLOC, FREE, MARK, RESIZE
from snugfit.simulator.request import NamedModel, record_named
from snugfit.techniques.init.late import is_awaited
from snugfit.workers.pool import shared_pool
from snugfit.workloads import hf_files
from snugfit.workloads.models import build_model
from snugfit.workloads.stored_weights import StoredShards

pytest.importorskip("peft")
pytest.importorskip("bitsandbytes")
WIDE = {**LLAMA, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 6, "vocab_size": 1024}
LARGEST, LAYER = 1024 * 128, 512 * 128
"""Weights of the embedding and of the largest layer that is packed."""


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """A directory with the weights of a small model in bf16, in several files."""
    folder = tmp_path_factory.mktemp("shards")
    build(WIDE).to(torch.bfloat16).save_pretrained(folder, max_shard_size="300KB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    return folder


def awaited(model):
    return [name for name, weight in model.named_parameters() if is_awaited(weight)]


def prepared(spec, recipe, **given):
    model = build_model(spec, dtype={"bf16-true": torch.bfloat16}.get(recipe.precision), **given)
    return snugfit.prepare(model, recipe, device="cpu").model.state_dict()


def same(one, other):
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


@pytest.mark.parametrize("quantize", ["nf4", "int8"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-true"])
def test_packed_weights_are_those_of_a_model_that_was_loaded_whole(shards, quantize, precision):
    recipe = Recipe(adapter="lora", quantize=quantize, precision=precision)
    whole, late = (prepared(f"hf:{shards}", recipe, weights="DEFAULT", late=late) for late in (False, True))
    assert same(whole, late)


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_are_read_stack_by_stack_as_transformers_makes_them_of_files(tmp_path, name):
    build(MIXTURES[name]).save_pretrained(tmp_path, max_shard_size="100KB")
    model = build_model(f"hf:{tmp_path}", weights="DEFAULT", late=True)
    assert {one for one in awaited(model) if ".experts." in one} == {
        one for one, weight in model.named_parameters() if ".experts." in one
    }
    assert any(f".experts.{kind}" in one for one in awaited(model) for kind in ("gate_up_proj", "down_proj"))
    whole, late = (
        prepared(f"hf:{tmp_path}", Recipe(adapter="lora", quantize="nf4"), weights="DEFAULT", late=late)
        for late in (False, True)
    )
    assert same(whole, late)
    cast = build_model(f"hf:{tmp_path}", weights="DEFAULT", dtype=torch.bfloat16)
    read = type(cast).from_pretrained(tmp_path, dtype=torch.bfloat16)
    # transformers leaves what routes DeepSeek's tokens in float32.
    assert same(cast.state_dict(), read.to(torch.bfloat16).state_dict())


@pytest.mark.parametrize("config", [WIDE, {**WIDE, "tie_word_embeddings": True}, BERT], ids=["llama", "tied", "bert"])
def test_weights_cast_on_their_way_are_those_that_transformers_reads(tmp_path, config):
    donor = build(config)
    donor.save_pretrained(tmp_path, max_shard_size="300KB")
    task = "masked-lm" if config is BERT else "causal-lm"
    model = build_model(f"hf:{tmp_path}", weights="DEFAULT", task=task, dtype=torch.bfloat16)
    read = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert same(model.state_dict(), read.state_dict()) and model.name_or_path == str(tmp_path)
    assert len(list(model.parameters())) == len(list(read.parameters()))


def test_what_the_files_do_not_hold_just_so_is_read_by_transformers(shards):
    with pytest.warns(snugfit.errors.SnugfitWarning, match="fresh values"):
        model = build_model(f"hf:{shards}", weights="DEFAULT", task="text-classification", num_classes=3, late=True)
    assert not awaited(model) and model.score.out_features == 3
    assert torch.equal(model.model.embed_tokens.weight, StoredShards(sorted(shards.glob("*.safetensors"))).copied(
        "model.embed_tokens.weight").float())  # fmt: skip


def built_bytes(trace, place):
    """The most bytes that are there while the model is built."""
    now = most = 0
    size = {}
    for kind, subject, value in zip(trace.kinds, trace.subjects, trace.values, strict=True):
        if kind == MARK and trace.phases[subject] == "forward":
            return most
        if kind in (ALLOC, FREE, RESIZE) and trace.storages[subject].place in place:
            new = trace.storages[subject].nbytes if kind == ALLOC else 0 if kind == FREE else value
            now += new - size.get(subject, 0)
            size[subject] = new
            most = max(most, now)
    raise AssertionError("no step was recorded")


def simulated(spec, recipe, personality):
    named = NamedModel(spec=spec, task="causal-lm", seq_len=8)
    return shared_pool().call(record_named, named, 1, {"optimizer": "adamw"}, recipe, personality).trace


QLORA = Recipe(adapter="lora", quantize="nf4", precision="bf16-true")


def test_the_host_of_a_card_holds_no_more_than_one_weight(shards):
    config = f"{shards}/config.json"
    for spec, most in ((f"hf:{shards}", 2 + 2), (f"hf:{config}", 4 + 2)):  # as stored or drawn, and as it is cast
        assert built_bytes(simulated(spec, QLORA, Personality()), {"host"}) <= 1.05 * most * LARGEST  # norms beside
    # What is not packed is read one by one, too, and nothing else changes.
    plain = simulated(f"hf:{shards}", Recipe(precision="bf16-true"), Personality())
    assert built_bytes(plain, {"host"}) <= (2 + 2) * LARGEST


def test_building_on_a_processor_takes_what_is_predicted(shards):
    warm_up()
    events = AllocatorEvents()
    events.start()
    model = build_model(f"hf:{shards}", weights="DEFAULT", dtype=torch.bfloat16, late=True)
    trainer = snugfit.prepare(model, QLORA, device="cpu")
    events.stop()
    final = sum(tensor.nbytes for tensor in (*trainer.model.parameters(), *trainer.model.buffers()))
    assert events.peak_bytes < final + (2 + 4) * LAYER + 4 * LARGEST
    predicted = simulated(f"hf:{shards}", QLORA, Personality(kind="cpu", threads=1))
    assert built_bytes(predicted, {"host", "device"}) == pytest.approx(events.peak_bytes, rel=0.05)


def test_what_has_no_weights_is_drawn_layer_by_layer_and_the_seed_decides(tmp_path):
    spec, recipe = f"hf:{config_file(tmp_path, WIDE)}", Recipe(adapter="lora", quantize="int8")

    def drawn(seed):
        torch.manual_seed(seed)
        model = build_model(spec, late=True)
        assert len(awaited(model)) == 2 + 7 * WIDE["num_hidden_layers"]
        return snugfit.prepare(model, recipe, device="cpu").model

    one, again, other = drawn(1), drawn(1), drawn(2)
    assert same(one.state_dict(), again.state_dict())
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)
    for weight in (one.lm_head.weight, one.model.embed_tokens.weight, one.model.layers[3].mlp.up_proj.weight):
        assert weight.std().item() == pytest.approx(one.config.initializer_range, rel=0.05)
        assert abs(weight.mean().item()) < 0.001


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_without_values_are_drawn_stack_by_stack(tmp_path, name):
    torch.manual_seed(0)
    model = build_model(f"hf:{config_file(tmp_path, MIXTURES[name])}", late=True)
    stacks = {one for one, weight in model.named_parameters() if ".experts." in one and weight.dim() == 3}
    assert stacks and stacks <= set(awaited(model))
    bare = snugfit.prepare(model, Recipe(), device="cpu").model
    for one in stacks:
        assert bare.get_parameter(one).std().item() == pytest.approx(bare.config.initializer_range, rel=0.05)


def test_what_something_else_had_a_hand_in_is_drawn_whole(tmp_path):
    """Embedding and head are one weight, which the two of them have written to."""
    spec = f"hf:{config_file(tmp_path, {**WIDE, 'tie_word_embeddings': True})}"
    torch.manual_seed(0)
    late = build_model(spec, late=True)
    torch.manual_seed(0)
    assert awaited(late) or same(late.state_dict(), build_model(spec).state_dict())


def test_a_directory_with_a_damaged_index_is_one_message(shards, tmp_path):
    (tmp_path / "config.json").write_text((shards / "config.json").read_text())
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(snugfit.InputError, match="cannot be read"):
        hf_files.stored_weights(str(tmp_path))
