"""Stochastic rounding: the mean is exact, small updates survive, nothing else draws other numbers."""

import copy
import functools
import warnings
from types import SimpleNamespace

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model
from torch import nn

import snugfit
from snugfit import Recipe, RecipeError, SnugfitWarning
from snugfit.techniques.stochastic_rounding.apply import RoundedUpdate, round_stochastically


class One(nn.Module):
    def __init__(self, shape=(64, 64)):
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, 0.05))

    def forward(self, x):
        return (self.weight * x.mean()).sum()


def after_100_small_updates(**fields):
    model = One()
    trainer = snugfit.prepare(model, Recipe(precision="bf16-true", **fields), optimizer="sgd", lr=1e-4, device="cpu")
    for _ in range(100):
        trainer.step(torch.full((4,), -1.0))
    return model.weight.float()


def test_the_mean_is_exact():
    generator = torch.Generator().manual_seed(0)
    values = torch.tensor([1.0, 1.001, -0.0503, 3e-5, 1234.5, 0.0])
    rounded = round_stochastically(values.repeat(20000, 1), generator).double()
    step = (values.abs() * 2**-7).double().clamp(min=1e-12)
    assert ((rounded.mean(0) - values.double()).abs() < 0.02 * step).all()
    assert torch.equal(rounded[:, 0].unique(), torch.ones(1, dtype=torch.float64)), "what bf16 holds stays"
    assert len(rounded[:, 1].unique()) == 2
    odd = round_stochastically(torch.tensor([float("inf"), -float("inf"), float("nan")]), generator)
    assert odd[0] == float("inf") and odd[1] == -float("inf") and odd[2].isnan()
    assert torch.equal(round_stochastically(torch.ones(3, 2).t(), generator), torch.ones(2, 3, dtype=torch.bfloat16))


def test_small_updates_survive():
    """100 updates of 1e-4 on 0.05: rounding to nearest loses them, the mean of stochastic rounding has them."""
    with pytest.warns(SnugfitWarning, match="lost to rounding"):
        nearest = after_100_small_updates()
    assert float(nearest.mean()) == pytest.approx(0.05, abs=1e-3)
    assert float(after_100_small_updates(stochastic_rounding=True).mean()) == pytest.approx(0.06, abs=5e-4)


@pytest.mark.parametrize("in_backward", [False, True])
def test_random_state_of_torch_is_left_alone_and_resuming_is_bitwise(in_backward):
    batches = make_batches("mlp", 8, 6, torch.float32)
    recipe = Recipe(precision="bf16-true", stochastic_rounding=True, step_in_backward=in_backward)

    def new(seed=3):
        model = make_model("mlp", torch.float32)
        return model, snugfit.prepare(model, recipe, loss=cross_entropy, device="cpu", seed=seed)

    whole, trainer = new()
    before = torch.get_rng_state()
    for batch in batches:
        trainer.step(batch)
    assert torch.equal(before, torch.get_rng_state())
    _, first = new()
    for batch in batches[:3]:
        first.step(batch)
    state = copy.deepcopy(first.state_dict())
    resumed, second = new(seed=99)
    second.load_state_dict(state)
    for batch in batches[3:]:
        second.step(batch)
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert one.dtype == torch.bfloat16 and torch.equal(one, other)
    different, trainer = new(seed=4)
    for batch in batches:
        trainer.step(batch)
    assert not torch.equal(different.head.weight, whole.head.weight)


def test_state_is_bf16_between_steps():
    model = make_model("mlp", torch.float32)
    trainer = snugfit.prepare(
        model, Recipe(precision="bf16-true", stochastic_rounding=True), loss=cross_entropy, device="cpu"
    )
    trainer.step(make_batches("mlp", 8, 1, torch.float32)[0])
    for state in trainer.state_dict()["optimizer"]["state"].values():
        assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.bfloat16 and float(state["step"]) == 1


MAKERS = {
    "adamw": functools.partial(torch.optim.AdamW, lr=0.1),
    "momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adafactor": functools.partial(torch.optim.Adafactor, lr=0.1),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_small_parameters_step_together_each_by_its_own_gradient(make):
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(size, dtype=torch.bfloat16)) for size in ((3, 4), (5,), (2,))]
    plain = [torch.nn.Parameter(weight.detach().float()) for weight in weights]
    optimizer, reference = make(weights), make(plain)
    update = RoundedUpdate(optimizer, weights, 0, SimpleNamespace(generator=torch.Generator().manual_seed(0)))

    def held():
        return [one.clone() for one in update.held()]

    good, bad = torch.zeros(()), torch.ones(())
    for flag, late in ((good, 1), (None, 0), (bad, 0), (good, 0)):
        for one, other in list(zip(weights, plain, strict=True))[
            : 3 - late
        ]:  # the last one's first gradient comes late
            one.grad = torch.randn_like(one)
            other.grad = None if flag is bad else one.grad.float()
        before = held()
        update.step(flag)
        reference.step()
        reference.zero_grad()
        assert all(weight.grad is None for weight in weights)
        assert all(map(torch.equal, before, held())) is (flag is bad)
    for one, other in zip(weights, plain, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0.02, atol=0.02)
        mine, theirs = optimizer.state[one], reference.state[other]
        assert mine.keys() == theirs.keys() and float(mine.get("step", 0)) == float(theirs.get("step", 0))
        assert all(value.shape == theirs[name].shape for name, value in mine.items())


def test_what_steps_together_is_no_larger_than_the_largest():
    weights = [torch.nn.Parameter(torch.zeros(size, dtype=torch.bfloat16)) for size in (8, 100, 8, 40, (), 8, 60)]
    setup = SimpleNamespace(recipe=Recipe(), ranks=None)
    found = [[one.numel() for one in part] for part in RoundedUpdate.together(weights, {}, setup)]
    assert found == [[100], [8, 8], [1], [60], [40, 8]] and sum(map(len, found)) == len(weights)
    setup = SimpleNamespace(recipe=Recipe(step_in_backward=True), ranks=None)
    assert len(RoundedUpdate.together(weights, {}, setup)) == len(weights)


def test_lost_updates_warn_once_and_only_when_lost():
    batches = make_batches("mlp", 8, 12, torch.float32)

    def run(precision="bf16-true", steps=12, model="mlp", **settings):
        trainer = snugfit.prepare(
            make_model(model, torch.float32), Recipe(precision=precision), loss=cross_entropy, device="cpu", **settings
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for batch in batches[:steps] if model == "mlp" else make_batches(model, 2, steps):
                trainer.step(batch)
        return [str(warning.message) for warning in caught if "lost to rounding" in str(warning.message)]

    assert len(run(lr=1e-6)) == 1
    assert run(lr=1e-2) == []
    assert run(precision="bf16-mixed", lr=1e-6) == []
    assert run(lr=1e-2, lr_schedule="linear", max_steps=2, steps=4) == [], "a rate of 0 loses nothing"
    assert run(model="tied", lr=1e-2, optimizer="sgd") == [], "rows of the embedding that no token touched"


def test_only_with_bf16_weights():
    for precision in ("fp32", "bf16-mixed", "16-true"):
        with pytest.raises(RecipeError, match="stochastic_rounding needs precision='bf16-true'"):
            Recipe(precision=precision, stochastic_rounding=True)
