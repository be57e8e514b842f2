"""Quantised frozen weights: the numbers, the gradients, the bytes, and what is refused."""

import copy

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model
from test_adapter import tiny_bert, tiny_llama, tokens, trainer_of
from torch import nn

import snugfit
from snugfit import InputError, Recipe
from snugfit.techniques import packed_weight
from snugfit.techniques.frozen_linear import FrozenLinear, freeze_linear

bitsandbytes = pytest.importorskip("bitsandbytes", reason="nf4 needs bitsandbytes")
pytest.importorskip("peft", reason="adapters need peft")

FORMATS = {"nf4": ("nf4", False), "nf4 double": ("nf4", True), "int8": ("int8", False)}
RECIPES = {
    "nf4": {"quantize": "nf4"},
    "nf4 double": {"quantize": "nf4", "double_quantize": True},
    "int8": {"quantize": "int8"},
}
CPU = torch.device("cpu")


def frozen(layer, name):
    layer = copy.deepcopy(layer)
    method, double = FORMATS[name]
    freeze_linear(layer, method, double=double, device=CPU, dtype=None)
    return layer


def linear(inputs, outputs, dtype=torch.float32, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(inputs, outputs).to(dtype)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(128, 96), (64, 10), (256, 512)])
def test_nf4_is_that_of_bitsandbytes(shape, dtype, double, monkeypatch):
    monkeypatch.setattr(packed_weight, "CHUNK", 64 * 37)  # several pieces, the last one smaller
    plain = linear(*shape, dtype)
    theirs = bitsandbytes.nn.Linear4bit(*shape, quant_type="nf4", compress_statistics=double)
    theirs.weight = bitsandbytes.nn.Params4bit(
        plain.weight.data.clone(), quant_type="nf4", compress_statistics=double, requires_grad=False
    ).to("cpu")
    expected = bitsandbytes.functional.dequantize_4bit(theirs.weight.data, theirs.weight.quant_state)
    ours = frozen(plain, "nf4 double" if double else "nf4")
    assert torch.equal(ours.W_q, theirs.weight.data.view(-1))
    assert torch.equal(ours.weight, expected)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", [(128, 96), (96, 64), (50, 6), (66, 33)])
def test_rounding_is_as_fine_as_the_format(name, shape):
    plain = linear(*shape)
    error = (frozen(plain, name).weight - plain.weight).abs()
    if name == "int8":
        assert (error <= plain.weight.abs().amax(1, keepdim=True) / 127 * 0.51).all()
    else:  # the widest gap of the sixteen values is 0.304 of the block's largest weight
        assert error.max() <= plain.weight.abs().max() * 0.16


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_output_and_gradient_are_those_of_the_rounded_weight(name, dtype):
    layer = frozen(linear(96, 64, dtype), name)
    reference = nn.Linear(96, 64).to(dtype)
    reference.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    x = torch.randn(5, 7, 96, dtype=dtype)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [layer(inputs[0]), reference(inputs[1])]
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)


@pytest.mark.parametrize("name", FORMATS)
def test_autocast(name):
    layer = frozen(linear(96, 64), name)
    x = torch.randn(5, 96, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(x)
    assert output.dtype == torch.bfloat16
    output.sum().backward()
    assert x.grad.dtype == torch.float32
    torch.testing.assert_close(x.grad[0], layer.weight.sum(0), rtol=2e-2, atol=2e-2)


def test_conv1d_of_gpt2():
    from transformers.pytorch_utils import Conv1D

    layer = Conv1D(64, 96)
    packed = frozen(layer, "int8")
    x = torch.randn(3, 96)
    torch.testing.assert_close(packed(x), layer(x), rtol=0.05, atol=0.02)


def test_zero_rows_stay_zero():
    layer = linear(64, 4)
    with torch.no_grad():
        layer.weight[1] = 0
    for name in FORMATS:
        assert not frozen(layer, name).weight[1].any()


def test_a_cast_of_the_model_leaves_scales_alone():
    for name in FORMATS:
        layer = frozen(linear(128, 64), name)
        before = layer.weight
        layer.to(torch.float16).half().bfloat16().to("cpu")
        assert torch.equal(layer.weight, before)
        assert layer.bias.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "name, bytes_a_weight", [("nf4", 0.5 + 4 / 64), ("nf4 double", 0.5 + 1 / 64 + 4 / 64 / 256), ("int8", 1 + 2 / 1024)]
)
def test_bytes(name, bytes_a_weight):
    layer = frozen(linear(1024, 512), name)
    own = {buffer for key, buffer in layer.named_buffers() if key not in ("scale_table", "scale_mean")}
    assert sum(buffer.nbytes for buffer in own) == 1024 * 512 * bytes_a_weight
    assert "weight" not in dict(layer.named_parameters())


@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize("name", RECIPES)
def test_trains_like_the_same_weights_unpacked(name, kind):
    """QLoRA is LoRA on rounded weights: the same losses as plain LoRA on a model that holds the rounded weights."""
    packed, unpacked = tiny_llama().double(), tiny_llama().double()
    trainers = [trainer_of(packed, recipe={"adapter": kind, **RECIPES[name]}, optimizer="sgd", lr=0.5)]
    weights = {path: module.weight for path, module in packed.named_modules() if isinstance(module, FrozenLinear)}
    with torch.no_grad():
        for path, weight in weights.items():
            unpacked.get_submodule(path.removesuffix(".base_layer")).weight.copy_(weight)
    trainers.append(trainer_of(unpacked, recipe={"adapter": kind}, optimizer="sgd", lr=0.5))
    for trainer in trainers:
        trainer._passes.loss = None
    losses = [[float(trainer.step(tokens())) for _ in range(4)] for trainer in trainers]
    assert losses[0][-1] < losses[0][0] - 0.01
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(
    "recipe",
    [
        {"checkpoint": "all", "offload_activations": "checkpoints"},
        {"microbatch_size": 2, "offload_optimizer": True},
        {"step_in_backward": True, "checkpoint": "selective"},
    ],
    ids=str,
)
def test_exact_techniques_stay_exact(name, recipe):
    def trained(more):
        model = make_model("mlp")
        trainer = trainer_of(model, recipe={**RECIPES[name], **more}, optimizer="sgd", lr=0.1)
        for batch in make_batches("mlp", 6, 3):
            trainer.step(batch)
        return model.state_dict()

    for (key, one), other in zip(trained({}).items(), trained(recipe).values(), strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-10, msg=key)


def test_nothing_is_kept_for_backward_but_the_packed_weight():
    layer, saved = frozen(linear(256, 512), "nf4"), []
    x = torch.randn(8, 256, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        layer(x)
    assert not saved


@pytest.mark.parametrize("make", [tiny_llama, tiny_bert])
def test_what_is_packed(make):
    model = make()
    snugfit.prepare(model, Recipe(adapter="lora", quantize="nf4", adapter_targets="*0*"), device="cpu")
    kept = {name for name, module in model.named_modules() if type(module) in (nn.Linear, nn.Embedding, nn.LayerNorm)}
    assert not any("layer" in name and "Norm" not in name and "lora_" not in name for name in kept), kept
    assert {"lm_head", "classifier"} & kept


def test_every_layer_that_is_packed_frees_its_weight_at_once():
    model = make_model("mlp", torch.float32)
    alive, seen = {name: module.weight.untyped_storage()._weak_ref() for name, module in _linears(model)}, []
    original = packed_weight._nf4

    def counted(*args):
        seen.append(sum(not torch.UntypedStorage._expired(ref) for ref in alive.values()))
        return original(*args)

    packed_weight._nf4 = counted
    try:
        snugfit.prepare(model, Recipe(adapter="lora", quantize="nf4"), loss=cross_entropy, device="cpu")
    finally:
        packed_weight._nf4 = original
        for ref in alive.values():
            torch.UntypedStorage._free_weak_ref(ref)
    assert seen == list(range(len(alive), len(alive) - len(seen), -1))


def _linears(model):
    return [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]


def test_resume_is_bitwise():
    batches = make_batches("mlp", 6, 4, torch.float32)

    def start():
        model = make_model("mlp", torch.float32)
        return model, trainer_of(model, recipe=RECIPES["nf4 double"])

    model, trainer = start()
    for batch in batches[:2]:
        trainer.step(batch)
    saved = copy.deepcopy(trainer.state_dict())
    for batch in batches[2:]:
        trainer.step(batch)
    other_model, other = start()
    other.load_state_dict(saved)
    for batch in batches[2:]:
        other.step(batch)
    for (name, one), two in zip(model.state_dict().items(), other_model.state_dict().values(), strict=True):
        assert torch.equal(one, two), name


def test_prepared_again():
    model = make_model("mlp", torch.float32)
    trainer_of(model, recipe=RECIPES["nf4"])
    state = copy.deepcopy(model.state_dict())
    trainer_of(model, recipe={**RECIPES["nf4"], "checkpoint": "all"})
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    with pytest.raises(InputError, match=r"quantised already \(quantize=nf4\).*build the model anew"):
        trainer_of(model, recipe=RECIPES["int8"])


def test_merging_is_refused():
    model = make_model("mlp", torch.float32)
    trainer_of(model, recipe=RECIPES["int8"])
    with pytest.raises(InputError, match=r"merged into quantised weights.*load_adapter"):
        snugfit.merge_adapter(model)
    with pytest.raises(InputError, match="merged into quantised weights"):
        model.get_submodule("stem").merge()


def test_bad_input(monkeypatch):
    with pytest.raises(snugfit.RecipeError, match="without an adapter"):
        Recipe(quantize="nf4")
    with pytest.raises(InputError, match="CNN has no linear layer that can be quantised"):
        trainer_of(make_model("cnn", torch.float32), recipe=RECIPES["int8"])
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    with pytest.raises(InputError, match=r"pip install 'snugfit\[lowbit\]'"):
        trainer_of(make_model("mlp", torch.float32), recipe=RECIPES["nf4"])
