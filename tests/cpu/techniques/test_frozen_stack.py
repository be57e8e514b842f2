"""Experts' stacked matrices, packed and adapted: the numbers, what is kept, what is said, and what is refused."""

import pytest
import stack_tasks
import torch
import torch.nn.functional as F
from stack_tasks import EVERYTHING, mixture, tokens
from text_models import MIXTRAL, MIXTURES, build
from torch import nn

import snugfit
from snugfit import InputError, Recipe
from snugfit.private_torch import compiler
from snugfit.techniques.adapter.experts import AdaptedMatrices
from snugfit.techniques.frozen_stack import FrozenStack, freeze_stack
from snugfit.techniques.packed_weight import PackedWeight

bitsandbytes = pytest.importorskip("bitsandbytes", reason="nf4 needs bitsandbytes")
pytest.importorskip("peft", reason="adapters need peft")

CPU = torch.device("cpu")
RECIPES = {
    "nf4": {"quantize": "nf4"},
    "nf4 double": {"quantize": "nf4", "double_quantize": True},
    "int8": {"quantize": "int8"},
}


class Experts(nn.Module):
    """Three of them."""

    def __init__(self, rows=32, columns=96):
        super().__init__()
        self.num_experts = 3
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(3, rows, columns) / 8)


def frozen(method="nf4", double=False, **sizes):
    module = Experts(**sizes)
    return freeze_stack(module, "weight", method, double=double, device=CPU, dtype=None), module


def test_each_expert_is_packed_as_bitsandbytes_packs_a_matrix():
    stack, module = frozen()
    plain = Experts().weight
    assert module.weight is stack and not dict(module.named_parameters())
    for expert in range(3):
        # In rows of one block: the kernels of some processors start a block at each row.
        blocks = plain[expert].detach().view(-1, 64)
        codes, state = bitsandbytes.functional.quantize_4bit(blocks, quant_type="nf4", blocksize=64)
        unpacked = bitsandbytes.functional.dequantize_4bit(codes, state)
        assert torch.equal(stack[expert].dense(), unpacked.view_as(plain[expert]))
    assert sum(buffer.nbytes for buffer in stack.buffers()) == 3 * 32 * 96 * (0.5 + 4 / 64)


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("method", RECIPES)
def test_products_and_gradients_are_those_of_the_unpacked_weight(method, adapted):
    recipe = Recipe(adapter="lora", **RECIPES[method])
    stack, _ = frozen(recipe.quantize, recipe.double_quantize)
    dense = stack.dequantize()
    factors = torch.randn(3, 32, 4), torch.randn(3, 4, 96)
    weight = stack
    if adapted:
        weight, dense = AdaptedMatrices(stack.matrices(), *factors, 0.5), dense + 0.5 * factors[0] @ factors[1]
    offs = torch.tensor([2, 2, 6], dtype=torch.int32)
    one = torch.tensor(1)
    calls = {
        "linear": (lambda w, x: F.linear(x, w[one], torch.ones(32)), (6, 96)),
        "matmul": (lambda w, x: x @ w[2], (6, 32)),
        "turned": (lambda w, x: x @ w[0].t(), (6, 96)),
        "batch": (lambda w, x: torch.bmm(x, w.transpose(1, 2)), (3, 5, 96)),
        "from the left": (lambda w, x: torch.bmm(w[torch.tensor([2, 2, 0])], x.unsqueeze(-1)), (3, 96)),
        "groups": (lambda w, x: F.grouped_mm(x, w.transpose(-2, -1), offs=offs), (6, 96)),
        "anything else": (lambda w, x: torch.einsum("si,eoi->seo", x, w) + (w * 2).sum(), (6, 96)),
        "a part": (lambda w, x: F.linear(x, w[1, 3:9]), (6, 96)),
    }
    for name, (call, shape) in calls.items():
        given = torch.randn(shape, generator=torch.Generator().manual_seed(3))
        inputs = [given.clone().requires_grad_() for _ in range(2)]
        outputs = [call(held, x) for held, x in zip((weight, dense), inputs, strict=True)]
        torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4, msg=name)
        for output in outputs:
            output.square().sum().backward()
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-3, atol=1e-3, msg=name)


@pytest.mark.parametrize("call", [lambda w, x: F.linear(x, w[1]), lambda w, x: F.grouped_mm(
    x, w.transpose(-2, -1), offs=torch.tensor([1, 2, 6], dtype=torch.int32))])  # fmt: skip
def test_nothing_is_kept_for_backward_but_the_packed_weight(call):
    stack, _ = frozen()
    saved, x = [], torch.randn(6, 96, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one) or one, lambda one: one):
        call(stack, x)
    assert not saved


@pytest.mark.parametrize("method", RECIPES)
@pytest.mark.parametrize("name", MIXTURES)
def test_trains_like_the_same_weights_unpacked(name, method):
    for implementation in ("eager", "grouped_mm", "batched_mm") if method == "nf4" else ("grouped_mm",):
        packed, plain = mixture(name, implementation), mixture(name, implementation)
        trainers = [
            snugfit.prepare(packed, Recipe(**EVERYTHING, **RECIPES[method]), device="cpu", optimizer="sgd", lr=0.3)
        ]
        held = {path: one for path, one in packed.named_modules() if isinstance(one, PackedWeight)}
        assert sum(isinstance(one, FrozenStack) for one in held.values()) in (2, 4)
        with torch.no_grad():
            for path, one in held.items():
                path = path.replace(".base_layer", "")
                own = dict(plain.named_parameters())
                own[path if path in own else f"{path}.weight"].copy_(one.dequantize())
        trainers.append(snugfit.prepare(plain, Recipe(**EVERYTHING), device="cpu", optimizer="sgd", lr=0.3))
        losses = [[float(trainer.step(tokens())) for _ in range(3)] for trainer in trainers]
        assert losses[0][-1] < losses[0][0] - 0.005
        torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "recipe", [{"checkpoint": "all"}, {"offload_optimizer": True}, {"step_in_backward": True}], ids=str
)
def test_exact_techniques_stay_exact(recipe):
    def trained(more):
        model = mixture("qwen3")
        trainer = snugfit.prepare(
            model, Recipe(**EVERYTHING, quantize="nf4", **more), device="cpu", optimizer="sgd", lr=0.1
        )
        for _ in range(3):
            trainer.step(tokens())
        return model.state_dict()

    for (key, one), other in zip(trained({}).items(), trained(recipe).values(), strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-6, msg=key)


def test_compiled_they_train_the_same():
    losses, made = [], compiler.graphs_made()
    torch.compiler.reset()
    for more in ({}, {"compile": "aot_eager"}):
        assert compiler.graphs_made() == made
        recipe = Recipe(**EVERYTHING, **RECIPES["nf4 double"], **more)
        trainer = snugfit.prepare(mixture("mixtral"), recipe, device="cpu", optimizer="sgd", lr=0.3)
        losses.append([float(trainer.step(tokens())) for _ in range(2)])
    assert compiler.graphs_made() > made
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_several_processes_train_them_as_one(two):
    recipes = [{**EVERYTHING, **packing} for packing in ({}, RECIPES["nf4"], RECIPES["int8"])]
    alone = [stack_tasks.trained("mixtral", recipe) for recipe in recipes]
    for found in two.do(stack_tasks.trained_in_several, "mixtral", [{**one, "shard": "full"} for one in recipes]):
        for (loss, weights), (loss_alone, weights_alone) in zip(found, alone, strict=True):
            assert loss == pytest.approx(loss_alone, abs=1e-6) and len(weights) == len(weights_alone) > 10
            for (key, one), other in zip(weights.items(), weights_alone.values(), strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-5, msg=key)


def test_a_state_goes_on_bitwise_under_the_plain_models_names():
    trainers = [
        snugfit.prepare(mixture("deepseek"), Recipe(**EVERYTHING, quantize="int8"), device="cpu", lr=1e-2)
        for _ in range(2)
    ]
    trainers[0].step(tokens())
    trainers[1].load_state_dict(trainers[0].state_dict())
    names = [key for key in trainers[1].model.state_dict() if ".experts." in key and "gate_up_proj" in key]
    assert names == [f"model.layers.1.mlp.experts.gate_up_proj.{part}" for part in ("W_q", "scales")]
    assert float(trainers[0].step(tokens())) == float(trainers[1].step(tokens()))


def test_all_linear_leaves_experts_alone_and_says_so(caplog):
    caplog.set_level("INFO", logger="snugfit")
    model = mixture("mixtral")
    snugfit.prepare(model, Recipe(adapter="lora", quantize="nf4"), device="cpu")
    assert not any("experts" in name for name, weight in model.named_parameters() if weight.requires_grad)
    assert "The experts get none: name them with adapter_targets" in caplog.text
    assert "linear layers and 4 stacks of experts packed" in caplog.text


def test_what_cannot_be_packed_is_counted():
    """Experts of 3 x 11 weights: their scales would be shared. Two layers of 4 x (22 x 3 + 3 x 11) of them in float32."""
    model = build(MIXTRAL, hidden_size=12, intermediate_size=11)
    with pytest.warns(snugfit.errors.SnugfitWarning, match=r"leaves 12\.8 KiB of matrices .*experts\.gate_up_proj"):
        snugfit.prepare(model, Recipe(adapter="lora", quantize="nf4"), device="cpu")
    assert not any(isinstance(one, FrozenStack) for one in model.modules())


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        (
            {"adapter": "dora", "adapter_targets": ("*.experts.*",)},
            r"names experts' stacked weights .*adapter='dora' is not for",
        ),
        ({"adapter_dropout": 0.1, "adapter_targets": ("*.down_proj",)}, "adapter_dropout is not for them"),
        ({"adapter_targets": ("*.up_proj",)}, r"matches no linear layer; .*\*\.gate_up_proj"),
    ],
)
def test_bad_input(recipe, says):
    with pytest.raises(InputError, match=says):
        snugfit.prepare(mixture("mixtral"), Recipe(**{"adapter": "lora", **recipe}), device="cpu")
