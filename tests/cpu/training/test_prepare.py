"""`prepare`: what it leaves alone, what it refuses, and a model prepared twice."""

import copy
import gc
import warnings

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model
from torch import nn

import snugfit
from snugfit import InputError, Recipe, RecipeError, SnugfitWarning
from snugfit.techniques.base import WrappedForward
from snugfit.training.given_optimizer import name_of

RECIPES = [
    {},
    {"precision": "bf16-mixed"},
    {"precision": "16-mixed"},
    {"precision": "bf16-true"},
    {"precision": "16-true"},
    {"precision": "tf32"},
    {"precision": "bf16-true", "stochastic_rounding": True},
    {"microbatch_size": 2},
    {"precision": "bf16-true", "microbatch_size": 2, "accumulate_dtype": "fp32"},
    {"checkpoint": "all"},
    {"checkpoint": "selective"},
    {"offload_activations": "all"},
    {"offload_activations": "blocks.0"},
    {"checkpoint": "all", "offload_activations": "checkpoints"},
    {"optimizer": "sgd"},
    {"offload_optimizer": True},
    {"step_in_backward": True},
    {"inplace": True},
    {"attention": "sdpa"},
    {"compile": "aot_eager"},
]


def wrappers(model):
    return [name for name, module in model.named_modules() if isinstance(vars(module).get("forward"), WrappedForward)]


@pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")
@pytest.mark.parametrize("fields", RECIPES, ids=str)
def test_keys_and_random_state_stay(fields):
    model = make_model("mlp", torch.float32)
    keys, kind = list(model.state_dict()), type(model)
    before = torch.get_rng_state()
    trainer = snugfit.prepare(model, Recipe(**fields), loss=cross_entropy, device="cpu")
    assert torch.equal(before, torch.get_rng_state())
    assert list(model.state_dict()) == keys == list(trainer.state_dict()["model"]) and type(model) is kind
    assert trainer.model is model
    trainer.step(make_batches("mlp", 4, 1, torch.float32)[0])
    trainer.finish()
    assert torch.equal(before, torch.get_rng_state()) and list(model.state_dict()) == keys


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": 1}, "'learning_rate' is no field"),
        ({"warmup_step": 1}, "did you mean 'warmup_steps'"),
        ({"optimizer": "adamwx"}, "optimizer is 'adamwx', which is unknown; did you mean 'adamw'"),
        ({"optimizer": "custom"}, "stands for a function"),
        ({"optimizer": 3}, "give a name or a function"),
        ({"optimizer": lambda weights: 3}, "must return a torch.optim.Optimizer"),
        ({"loss": "cross_entropy"}, "loss is 'cross_entropy'; give a function"),
        ({"forward": 1}, "forward is 1"),
        ({"split": 1}, "split is 1"),
        ({"loss_weight": "token"}, "did you mean 'tokens'"),
        ({"device": "gpu"}, "device 'gpu' is not there"),
        ({"device": "meta"}, "meta device"),
        ({"recipe": {"precision": "fp32"}}, "recipe is a dict; give a snugfit.Recipe"),
        ({"lr_schedule": "cosine"}, "give max_steps"),
        ({"warmup_steps": 9, "max_steps": 3}, "warmup_steps is 9"),
        ({"recipe": Recipe(microbatch_size=9), "batch_size": 4}, "larger than the batch of 4"),
        ({"freeze": ("nothing.*",)}, "matches no parameter"),
    ],
)
def test_bad_arguments(arguments, message):
    recipe = arguments.pop("recipe", None)
    with pytest.raises(InputError, match=message):
        snugfit.prepare(make_model("mlp"), recipe, **{"loss": cross_entropy, "device": "cpu", **arguments})


def test_several_mistakes_come_at_once():
    with pytest.raises(RecipeError) as error:
        snugfit.prepare(make_model("mlp"), lr=-1, momentum="x", clip_norm=0, nonsense=1, batch_size=0)
    assert len(error.value.problems) == 5


def test_models_that_cannot_be_trained():
    with pytest.raises(InputError, match=r"give a torch\.nn\.Module"):
        snugfit.prepare(3)
    with pytest.raises(InputError, match="returned a int"):
        snugfit.prepare(lambda: 3, device="cpu")
    with pytest.raises(InputError, match="nothing to train"):
        snugfit.prepare(make_model("mlp").requires_grad_(False), device="cpu")
    with pytest.raises(InputError, match="meta device"):
        snugfit.prepare(make_model("mlp").to("meta"), device="cpu")


def test_an_optimizer_function_gets_a_list():
    seen = []

    def make(weights):
        seen.append(len(weights))
        return torch.optim.SGD(weights[:2], lr=0.5)

    model = make_model("mlp")
    before = copy.deepcopy(model.state_dict())
    trainer = snugfit.prepare(
        model, loss=cross_entropy, optimizer=make, device="cpu", lr_schedule="linear", max_steps=2
    )
    trainer.step(make_batches("mlp", 4, 1)[0])
    changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert seen == [22] and changed == ["stem.weight", "stem.bias"]
    with pytest.warns(SnugfitWarning, match="lr, no_decay has no effect"):
        snugfit.prepare(model, loss=cross_entropy, optimizer=make, device="cpu", lr=0.1, no_decay=True)
    with pytest.warns(SnugfitWarning, match="momentum has no effect: adamw does not take it"):
        snugfit.prepare(model, loss=cross_entropy, device="cpu", momentum=0.9)


def test_fidelity_of_a_trainer():
    def level(model="mlp", optimizer="adamw", **fields):
        return str(snugfit.prepare(make_model(model), Recipe(**fields), device="cpu", optimizer=optimizer).fidelity)

    assert level(microbatch_size=2, checkpoint="all") == "exact (microbatch_size not checked yet)"
    assert level(model="vit", microbatch_size=2) == "different (microbatch_size)"
    assert level(precision="bf16-mixed") == "rounding (precision)"
    assert level(optimizer="adamw", **{}) == "exact"
    assert (
        str(snugfit.prepare(make_model("mlp"), Recipe(optimizer="sgd"), device="cpu").fidelity)
        == "different (optimizer)"
    )


def test_a_step_that_was_replaced_is_an_optimizer_of_its_own():
    model = make_model("mlp")
    optimizer = torch.optim.AdamW(model.parameters())
    torch.optim.lr_scheduler.ConstantLR(optimizer)  # torch's own wrapper around `step` is none
    assert name_of(optimizer) == "adamw"
    step = optimizer.step
    optimizer.step = lambda closure=None: step(closure)
    with pytest.raises(RecipeError, match="offload_optimizer builds an optimizer for each parameter"):
        snugfit.prepare(model, Recipe(offload_optimizer=True), optimizer=optimizer, device="cpu")


def test_freeze():
    model = make_model("mlp")
    trainer = snugfit.prepare(model, loss=cross_entropy, device="cpu", freeze=("blocks.*", "stem.*"))
    trainer.step(make_batches("mlp", 4, 1)[0])
    plain = make_model("mlp")
    changed = [name for name, weight in model.named_parameters() if not torch.equal(weight, plain.get_parameter(name))]
    assert changed == ["head.weight", "head.bias"]


@pytest.mark.parametrize(
    "first",
    [
        {"checkpoint": "all"},
        {"step_in_backward": True},
        {"offload_activations": "blocks.0"},
        {"compile": "eager"},
        {"checkpoint": "blocks.0", "offload_activations": "blocks.0"},
    ],
    ids=str,
)
def test_a_second_prepare_takes_over(first):
    batches = make_batches("mlp", 8, 2)
    model, plain = make_model("mlp"), make_model("mlp")
    earlier = snugfit.prepare(model, Recipe(**first), loss=cross_entropy, optimizer="sgd", lr=0.1, device="cpu")
    earlier.step(batches[0])
    later = snugfit.prepare(model, loss=cross_entropy, optimizer="sgd", lr=0.1, device="cpu")
    assert wrappers(model) == [] and all("forward" not in vars(module) for module in model.modules())
    assert model._compiled_call_impl is None
    with pytest.raises(InputError, match="prepared again"):
        earlier.step(batches[0])
    later.step(batches[1])
    reference = snugfit.prepare(plain, loss=cross_entropy, optimizer="sgd", lr=0.1, device="cpu")
    for batch in batches:
        reference.step(batch)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-14)


def test_hooks_go_with_their_trainer():
    model = make_model("mlp")
    trainer = snugfit.prepare(model, Recipe(step_in_backward=True), loss=cross_entropy, device="cpu")
    trainer.step(make_batches("mlp", 8, 1)[0])
    del trainer
    gc.collect()
    cross_entropy(model(make_batches("mlp", 8, 1)[0][0]), make_batches("mlp", 8, 1)[0]).backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_a_copy_of_a_prepared_model_can_be_prepared():
    model = make_model("mlp")
    snugfit.prepare(model, Recipe(checkpoint="all"), loss=cross_entropy, device="cpu")
    twin = copy.deepcopy(model)
    snugfit.prepare(twin, Recipe(checkpoint="blocks:1"), loss=cross_entropy, device="cpu")
    assert wrappers(twin) == ["blocks.0"] and wrappers(model) == ["blocks.0", "blocks.1", "blocks.2"]
    assert not isinstance(twin.blocks[0].forward.forward, WrappedForward)


def test_the_callers_own_forward_comes_back():
    model = make_model("mlp")
    original = model.blocks[0].forward
    calls = []

    def own(x):
        calls.append(1)
        return original(x)

    model.blocks[0].forward = own
    snugfit.prepare(model, Recipe(checkpoint="all"), loss=cross_entropy, device="cpu")
    snugfit.prepare(model, loss=cross_entropy, device="cpu").step(make_batches("mlp", 8, 1)[0])
    assert model.blocks[0].forward is own and calls == [1]


def test_gradients_from_before_do_not_count():
    model, plain, batch = make_model("mlp"), make_model("mlp"), make_batches("mlp", 8, 1)[0]
    model(batch[0]).sum().backward()
    for one in (model, plain):
        snugfit.prepare(one, loss=cross_entropy, optimizer="sgd", device="cpu").step(batch)
    assert torch.equal(model.head.weight, plain.head.weight)


def test_plain_recipe_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snugfit.prepare(nn.Linear(2, 2), device="cpu", lr=0.1, betas=(0.8, 0.9), weight_decay=0.1)
