"""Moving averages of the weights: torch's own are the reference, whatever the recipe keeps where."""

import pytest
import torch
from small_models import MLP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import snugfit
from snugfit.errors import InputError, RecipeError, TrainingError
from snugfit.recipe import Recipe

DECAY, STEPS = 0.9, 6
LOSS = torch.nn.CrossEntropyLoss()
RECIPES = {
    "plain": Recipe(),
    "microbatches": Recipe(microbatch_size=2),
    "step in backward": Recipe(step_in_backward=True),
    "optimizer on the host": Recipe(offload_optimizer=True),
    "for-loop": Recipe(optimizer_impl="for-loop"),
    "low bit": Recipe(optimizer="adamw8bit"),
}


def batch(number):
    make = torch.Generator().manual_seed(number)
    return torch.randn(8, 12, generator=make), torch.arange(8) % 5


def prepared(recipe, **given):
    torch.manual_seed(0)
    settings = {"loss": LOSS, "optimizer": "adamw", "lr": 1e-2, "device": "cpu", "ema_decay": DECAY}
    return snugfit.prepare(MLP(), recipe, **{**settings, **given})


def weights(model):
    return {name: one.detach().clone() for name, one in model.named_parameters()}


def reference(recipe, **given):
    """The averages by torch of what the same run without averages goes through, and its last weights."""
    trainer = prepared(recipe, **{**given, "ema_decay": None})
    averaged = AveragedModel(trainer.model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    for number in range(STEPS):
        trainer.step(batch(number))
        trainer.finish()
        averaged.update_parameters(trainer.model)
    return weights(averaged.module), weights(trainer.model)


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, one in wanted.items():
        torch.testing.assert_close(found[name], one, rtol=1e-6, atol=1e-7, msg=name)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [*((name, "adamw") for name in RECIPES), ("plain", "sgd"), ("optimizer on the host", "sgd"), ("plain", "muon"),
     ("plain", "adafactor")],
)  # fmt: skip
def test_averages_are_those_of_torch(name, optimizer):
    averages, last = reference(RECIPES[name], optimizer=optimizer)
    trainer = prepared(RECIPES[name], optimizer=optimizer)
    for number in range(STEPS):
        trainer.step(batch(number))
    with trainer.averaged():
        assert_same(weights(trainer.model), averages)
    assert_same(weights(trainer.model), last)
    trainer.step(batch(0))  # what changed places is not taken for a change by the owner


def test_a_saved_state_goes_on_with_its_averages():
    averages, _ = reference(Recipe())
    first = prepared(Recipe())
    for number in range(3):
        first.step(batch(number))
    second = prepared(Recipe(offload_optimizer=True))
    second.load_state_dict(first.state_dict())
    for number in range(3, STEPS):
        second.step(batch(number))
    with second.averaged():
        assert_same(weights(second.model), averages)


def test_another_recipe_in_the_middle_keeps_them():
    averages, _ = reference(Recipe())
    trainer = prepared(Recipe())
    for number in range(STEPS):
        if number == 3:
            trainer.change_recipe(Recipe(offload_optimizer=True, microbatch_size=4))
        trainer.step(batch(number))
    with trainer.averaged():
        found = weights(trainer.model)
    for name, one in averages.items():
        torch.testing.assert_close(found[name], one, rtol=1e-4, atol=1e-5)


def test_a_bad_step_leaves_them_alone():
    trainer = prepared(Recipe())
    for number in range(3):
        trainer.step(batch(number))
    with trainer.averaged():
        before = weights(trainer.model)
    with pytest.raises(TrainingError):
        trainer.step((torch.full((8, 12), float("nan")), torch.zeros(8, dtype=torch.int64)))
        trainer.finish()
    with trainer.averaged():
        assert_same(weights(trainer.model), before)


def test_a_flag_on_the_device_leaves_them_alone():
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    snugfit.AveragedWeights(optimizer, DECAY)
    for bad in (0.0, 0.0, 1.0):
        weight.grad = torch.ones(4)
        before = [
            one.clone() for one in (weight.detach(), *([optimizer.state[weight]["ema"]] if optimizer.state else []))
        ]
        optimizer.grad_scale, optimizer.found_inf = None, torch.tensor(bad)
        optimizer.step()
    assert torch.equal(weight, before[0]) and torch.equal(optimizer.state[weight]["ema"], before[1])


@pytest.mark.parametrize("decay", [0.0, 1.0, -1.0, 2.0])
def test_a_decay_that_is_none_is_refused(decay):
    with pytest.raises(RecipeError, match="ema_decay is"):
        prepared(Recipe(), ema_decay=decay)


def test_weights_in_16_bits_are_refused_in_words():
    with pytest.raises(InputError, match="held in bfloat16"):
        prepared(Recipe(precision="bf16-true"))


def test_a_loop_of_your_own_has_the_same():
    torch.manual_seed(0)
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mine, theirs = (
        snugfit.AveragedWeights(optimizer, DECAY),
        AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY)),
    )
    for number in range(STEPS):
        x, y = batch(number)
        optimizer.zero_grad()
        LOSS(model(x), y).backward()
        optimizer.step()
        theirs.update_parameters(model)
    with mine.in_place():
        assert_same(weights(model), weights(theirs.module))


def test_gradients_that_a_closure_makes_in_the_step_count():
    torch.manual_seed(0)
    model, (x, y) = MLP(), batch(0)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    mine, theirs = (
        snugfit.AveragedWeights(optimizer, DECAY),
        AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY)),
    )

    def closure():
        optimizer.zero_grad()
        loss = LOSS(model(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
        theirs.update_parameters(model)
    with mine.in_place():
        assert_same(weights(model), weights(theirs.module))


def test_their_bytes_are_predicted():
    batch_ = batch(0)
    plain, averaged = (
        snugfit.estimate(MLP(), batch_, loss=LOSS, device="cpu", ema_decay=decay) for decay in (None, DECAY)
    )
    held = sum(one.numel() * 4 for one in MLP().parameters())
    state = [one.anatomy_bytes["optimizer_state"] for one in (plain, averaged)]
    assert state[1] - state[0] == held
    hosts = [
        snugfit.estimate(
            MLP(), batch_, recipe=Recipe(offload_optimizer=True), loss=LOSS, device="rtx-3090", ema_decay=decay
        )
        for decay in (None, DECAY)
    ]
    largest = max(one.numel() * 4 for one in MLP().parameters())  # on its way into the pool it is there twice
    assert held <= hosts[1].host_bytes - hosts[0].host_bytes <= held + largest
