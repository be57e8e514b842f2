"""Step in backward: few gradients alive, the ordinary schedule and state_dict, refusals."""

import copy

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model

import snugfit
from snugfit import InputError, Recipe, RecipeError

BATCHES = make_batches("mlp", 8, 6)


def trainer_of(model, in_backward=True, **settings):
    return snugfit.prepare(
        model, Recipe(step_in_backward=in_backward), loss=cross_entropy, device="cpu", batch_size=8, **settings
    )


def assert_same(one, other):
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-14), name


@pytest.mark.parametrize("in_backward", [False, True])
def test_how_many_gradients_are_alive(in_backward):
    model, alive = make_model("mlp"), []
    trainer = trainer_of(model, in_backward)
    weights = list(model.parameters())
    trainer.step(BATCHES[0])  # before the first update in backward, a few samples are tried
    for weight in weights:
        weight.register_hook(lambda _: alive.append(sum(one.grad is not None for one in weights)))
    trainer.step(BATCHES[0])
    assert len(alive) == len(weights)
    assert max(alive) <= 1 if in_backward else max(alive) == len(weights) - 1
    assert all(weight.grad is None for weight in weights)


@pytest.mark.parametrize(
    "settings",
    [
        {"lr_schedule": "cosine", "max_steps": 6, "warmup_steps": 2, "lr": 1e-2},
        {"optimizer": "sgd", "momentum": 0.9, "lr": 0.1, "lr_schedule": "linear", "max_steps": 6},
        {"no_decay": True, "weight_decay": 0.3},
        {"optimizer": "adafactor"},
    ],
)
def test_schedule_and_groups_are_the_ordinary_ones(settings):
    models = [make_model("mlp"), make_model("mlp")]
    for model, in_backward in zip(models, (False, True), strict=True):
        trainer = trainer_of(model, in_backward, **settings)
        for batch in BATCHES:
            trainer.step(batch)
    assert_same(*models)
    assert not torch.equal(models[0].head.weight, make_model("mlp").head.weight)


@pytest.mark.parametrize("first", [False, True])
def test_state_dict_fits_the_other_kind(first):
    settings = {"no_decay": True, "lr_schedule": "cosine", "max_steps": 6, "lr": 1e-2}
    whole = make_model("mlp")
    trainer = trainer_of(whole, **settings)
    for batch in BATCHES:
        trainer.step(batch)
    model = make_model("mlp")
    one = trainer_of(model, first, **settings)
    for batch in BATCHES[:3]:
        one.step(batch)
    state = copy.deepcopy(one.state_dict())
    assert [group["params"] for group in state["optimizer"]["param_groups"]] == [list(range(8)), list(range(8, 22))]
    resumed = make_model("mlp")
    other = trainer_of(resumed, not first, **settings)
    other.load_state_dict(state)
    for batch in BATCHES[3:]:
        other.step(batch)
    assert_same(resumed, whole)


def test_state_dict_loads_into_torch_itself():
    model = make_model("mlp")
    trainer = trainer_of(model, lr=1e-2)
    trainer.step(BATCHES[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    optimizer.load_state_dict(copy.deepcopy(trainer.state_dict()["optimizer"]))
    twin = copy.deepcopy(model)
    twin_trainer = trainer_of(twin, False, lr=1e-2)
    twin_trainer.load_state_dict(copy.deepcopy(trainer.state_dict()))
    handles = [weight._post_accumulate_grad_hooks for weight in model.parameters()]
    before = copy.deepcopy(model.state_dict())
    cross_entropy(model(BATCHES[1][0]), BATCHES[1]).backward()
    assert all(handles), "our hooks are there, and act in a step only: this backward was not one"
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    trainer.step(BATCHES[1])
    twin_trainer.step(BATCHES[1])
    assert_same(model, twin)
    with pytest.raises(InputError, match="does not fit this model"):
        trainer.load_state_dict({**trainer.state_dict(), "optimizer": torch.optim.AdamW([torch.zeros(1)]).state_dict()})


def test_tied_parameters_step_once():
    model = make_model("tied")
    trainer = trainer_of(model)
    trainer.step(make_batches("tied", 8, 1)[0])
    assert {int(state["step"]) for state in trainer.state_dict()["optimizer"]["state"].values()} == {1}


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ({"precision": "16-mixed"}, {}, "contradicts precision='16-mixed'"),
        ({"accumulate_dtype": "fp32"}, {}, "contradicts accumulate_dtype"),
        ({"microbatch_size": 2}, {"batch_size": 8}, "contradicts accumulation"),
        ({"microbatch_size": 2}, {}, "batch of unknown size"),
        ({}, {"clip_norm": 1.0}, "contradicts clip_norm"),
        ({}, {"optimizer": lambda weights: torch.optim.SGD(weights, lr=0.1)}, "needs one by name"),
    ],
)
def test_refusals(recipe, settings, message):
    with pytest.raises(RecipeError, match=message):
        snugfit.prepare(
            make_model("mlp"), Recipe(step_in_backward=True, **recipe), loss=cross_entropy, device="cpu", **settings
        )


def test_a_batch_larger_than_promised_is_refused():
    model = make_model("mlp")
    before = model.head.weight.detach().clone()
    trainer = snugfit.prepare(
        model, Recipe(step_in_backward=True, microbatch_size=4), loss=cross_entropy, device="cpu", batch_size=4
    )
    with pytest.raises(InputError, match="makes 2 microbatches of 4"):
        trainer.step(BATCHES[0])
    assert torch.equal(model.head.weight, before)
