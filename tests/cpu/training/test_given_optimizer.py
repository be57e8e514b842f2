"""Optimizers and schedulers of the caller's: what they set is what updates, by every kind of update."""

import copy
import warnings

import pytest
import torch
from small_models import cross_entropy, make_batches, make_model
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR

import snugfit
from snugfit import InputError, Recipe, RecipeError, SnugfitWarning

STEPS = 6
BATCHES = make_batches("mlp", 8, STEPS)
KINDS = {
    "whole": {},
    "in_backward": {"step_in_backward": True},
    "on_host": {"offload_optimizer": True},
    "on_host_in_backward": {"offload_optimizer": True, "step_in_backward": True},
    "microbatches": {"microbatch_size": 3},
}
IMPLS = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for_loop": {"foreach": False}}
SCHEDULERS = {
    "step": lambda optimizer: StepLR(optimizer, 2, 0.3),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, STEPS),
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (step + 1)),
    "one_cycle": lambda optimizer: OneCycleLR(optimizer, 0.05, total_steps=STEPS + 1),  # moves the betas as well
}


def plain(make, schedule=None, change=None):
    model = make_model("mlp")
    optimizer = make(model)
    scheduler = schedule(optimizer) if schedule else None
    for number, batch in enumerate(BATCHES):
        if change:
            change(optimizer, number)
        optimizer.zero_grad()
        cross_entropy(model(batch[0]), batch).backward()
        optimizer.step()
        if scheduler:
            scheduler.step()
    return model


def same(one, other, tolerance=1e-12):
    return all(
        torch.allclose(a, b, rtol=0, atol=tolerance) for a, b in zip(one.parameters(), other.parameters(), strict=True)
    )


def adamw(model, **settings):
    return AdamW(model.parameters(), **{"lr": 0.02, "weight_decay": 0.1, "eps": 1e-6, **settings})


def prepared(model, fields, optimizer, **arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnugfitWarning)
        return snugfit.prepare(
            model,
            Recipe(**fields),
            loss=cross_entropy,
            optimizer=optimizer,
            device="cpu",
            coupled_samples=False,
            **arguments,
        )


@pytest.mark.parametrize("schedule", SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("made", ["before", "after", "given", "given_function"])
def test_schedulers_act_on_what_updates(schedule, fields, made):
    model = make_model("mlp")
    optimizer = adamw(model)
    scheduler = schedule(optimizer) if made in ("before", "given") else None
    given = {"given": scheduler, "given_function": schedule}.get(made)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # torch's "lr_scheduler.step() before optimizer.step()" among them
        warnings.simplefilter("ignore", SnugfitWarning)
        trainer = snugfit.prepare(
            model, Recipe(**fields), loss=cross_entropy, optimizer=optimizer, scheduler=given, device="cpu",
            coupled_samples=False,
        )  # fmt: skip
        assert trainer.optimizer is optimizer
        if made == "after":
            scheduler = schedule(optimizer)
        for batch in BATCHES:
            trainer.step(batch)
            if made in ("before", "after"):
                scheduler.step()
    assert same(model, plain(adamw, schedule))


@pytest.mark.parametrize("impl", IMPLS.values(), ids=IMPLS)
@pytest.mark.parametrize("fields", [{}, {"step_in_backward": True}], ids=str)
def test_kernels_are_those_of_the_instance(impl, fields):
    model = make_model("mlp")
    optimizer = adamw(model, **impl)
    scheduler = StepLR(optimizer, 1, 0.5)
    trainer = prepared(model, fields, optimizer)
    for batch in BATCHES:
        trainer.step(batch)
        scheduler.step()
    assert same(model, plain(adamw, SCHEDULERS["step"]), 1) and not same(model, plain(adamw), 1e-6)
    assert same(model, plain(lambda one: adamw(one, **impl), lambda optimizer: StepLR(optimizer, 1, 0.5)))


@pytest.mark.parametrize(
    "fields", [*KINDS.values(), {"optimizer_impl": "for-loop"}, {"optimizer_impl": "foreach"}], ids=str
)
def test_by_name_the_trainer_has_the_object(fields):
    model = make_model("mlp")
    trainer = prepared(model, fields, "adamw", lr=0.02, weight_decay=0.1)
    scheduler = OneCycleLR(trainer.optimizer, 0.05, total_steps=STEPS + 1)
    for batch in BATCHES:
        trainer.step(batch)
        scheduler.step()
    assert same(model, plain(lambda one: adamw(one, eps=1e-8), SCHEDULERS["one_cycle"]))


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_rates_set_by_hand(fields):
    def change(optimizer, number):
        if number == 2:
            optimizer.param_groups[1]["lr"] = 0.3
        if number == 4:
            optimizer.param_groups[0]["weight_decay"] = 0.5

    def grouped(model):
        weights = list(model.parameters())
        return Adam([{"params": weights[:4], "lr": 0.1}, {"params": weights[4:], "betas": (0.5, 0.9)}], lr=0.01)

    model = make_model("mlp")
    optimizer = grouped(model)
    trainer = prepared(model, fields, optimizer)
    for number, batch in enumerate(BATCHES):
        change(optimizer, number)
        trainer.step(batch)
    assert same(model, plain(grouped, change=change))


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_our_schedule_and_theirs_multiply(fields):
    def both(optimizer):
        return LambdaLR(optimizer, lambda step: 0.5**step * min(1.0, (step + 1) / 4))

    model = make_model("mlp")
    optimizer = adamw(model)
    trainer = prepared(model, fields, optimizer, warmup_steps=3)
    scheduler = StepLR(optimizer, 1, 0.5)
    for number, batch in enumerate(BATCHES):
        trainer.step(batch)
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.02 * 0.5 ** (number + 1))  # theirs alone
    assert same(model, plain(adamw, both))


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("resumed_by", KINDS.values(), ids=KINDS)
def test_resuming(fields, resumed_by):
    def start(fields):
        model = make_model("mlp")
        optimizer = adamw(model)
        trainer = prepared(model, fields, optimizer, scheduler=StepLR(optimizer, 2, 0.3))
        return model, optimizer, trainer

    _, optimizer, trainer = start(fields)
    for batch in BATCHES[:3]:
        trainer.step(batch)
    saved = copy.deepcopy(trainer.state_dict())
    assert saved["optimizer"]["param_groups"][0]["lr"] == pytest.approx(0.02 * 0.3)
    assert saved["optimizer"]["state"].keys() == optimizer.state_dict()["state"].keys()
    model, optimizer, trainer = start(resumed_by)
    trainer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.02 * 0.3)
    for batch in BATCHES[3:]:
        trainer.step(batch)
    assert same(model, plain(adamw, SCHEDULERS["step"]))


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_state_goes_through_the_instance_too(fields):
    """A run that plain code began, saved and loaded through the optimizer's own methods."""
    model = make_model("mlp")
    optimizer = adamw(model)
    for batch in BATCHES[:2]:
        optimizer.zero_grad()
        cross_entropy(model(batch[0]), batch).backward()
        optimizer.step()
    trainer = prepared(model, fields, optimizer)  # state that is there already is taken over
    for batch in BATCHES[2:4]:
        trainer.step(batch)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    model = make_model("mlp")
    optimizer = adamw(model)
    trainer = prepared(model, fields, optimizer)
    trainer.load_state_dict({**trainer.state_dict(), "model": weights})
    optimizer.load_state_dict(state)
    for batch in BATCHES[4:]:
        trainer.step(batch)
    assert same(model, plain(adamw))


def test_the_object_stays_when_the_update_changes():
    """Memory runs out, the run goes on with another kind of update, and the scheduler still reaches it."""
    model = make_model("mlp")
    optimizer = adamw(model)
    trainer = prepared(model, {}, optimizer)
    scheduler = StepLR(optimizer, 2, 0.3)
    kinds = [{"step_in_backward": True}, {}, {"offload_optimizer": True}, {"microbatch_size": 4}, {}, {}]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnugfitWarning)
        for batch, fields in zip(BATCHES, kinds, strict=True):
            trainer._recovery.choices.stay_with(Recipe(**fields))
            trainer.step(batch)
            scheduler.step()
    assert same(model, plain(adamw, SCHEDULERS["step"]))
    assert len(optimizer.state) == len(list(model.parameters()))


def test_low_bit_state_follows_the_instance():
    pytest.importorskip("bitsandbytes")

    def run(given):
        model = make_model("mlp", torch.float32)
        optimizer = AdamW(model.parameters(), lr=0.02, eps=1e-6) if given else "adamw8bit"
        recipe = Recipe(optimizer="adamw8bit")
        with pytest.warns(SnugfitWarning) if given else warnings.catch_warnings():
            trainer = snugfit.prepare(
                model, recipe, loss=cross_entropy, optimizer=optimizer, device="cpu", **({} if given else {"lr": 0.02})
            )
        scheduler = StepLR(trainer.optimizer, 2, 0.3)
        if not given:
            for group in trainer.optimizer.param_groups:
                group["eps"] = 1e-6
        for batch in make_batches("mlp", 8, STEPS, torch.float32):
            trainer.step(batch)
            scheduler.step()
        return model

    assert same(run(True), run(False), 1e-7)


def test_other_classes_update_whole_and_say_what_they_cannot():
    model = make_model("mlp")
    trainer = prepared(model, {"microbatch_size": 4}, RMSprop(model.parameters(), lr=1e-3, momentum=0.5))
    for batch in BATCHES:
        trainer.step(batch)
    assert same(model, plain(lambda one: RMSprop(one.parameters(), lr=1e-3, momentum=0.5)))
    for field in ("step_in_backward", "offload_optimizer"):
        with pytest.raises(
            RecipeError, match="an instance of torch's Adam, AdamW, SGD or Adafactor, not the one given"
        ):
            prepared(model, {field: True}, RMSprop(model.parameters()))


def test_what_is_beside_the_model_is_trained_too():
    """A learned temperature of the loss, in the same optimizer."""

    def run(snug):
        model, heat = make_model("mlp"), torch.nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        optimizer = SGD([*model.parameters(), heat], lr=0.1)

        def loss(output, batch):
            return cross_entropy(output * heat, batch)

        if snug:
            trainer = snugfit.prepare(model, loss=loss, optimizer=optimizer, device="cpu")
        for batch in BATCHES:
            if snug:
                trainer.step(batch)
                assert heat.grad is None
            else:
                optimizer.zero_grad()
                loss(model(batch[0]), batch).backward()
                optimizer.step()
        return heat.detach()

    assert torch.allclose(run(True), run(False), rtol=0, atol=1e-13)


def test_adapters_join_the_instance():
    model = make_model("mlp", torch.float32)
    optimizer = AdamW(model.parameters(), lr=0.01)
    with pytest.warns(SnugfitWarning, match="join its first group"):
        trainer = snugfit.prepare(model, Recipe(adapter="lora"), loss=cross_entropy, optimizer=optimizer, device="cpu")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer.step(make_batches("mlp", 8, 1, torch.float32)[0])
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert any("lora_B" in name for name in changed) and not any(name.endswith("layers.0.weight") for name in changed)


@pytest.mark.parametrize(
    ("optimizer", "scheduler", "message"),
    [
        (lambda model: AdamW([torch.zeros(1, requires_grad=True)]), None, "none of the model's parameters"),
        (lambda model: 3, None, "optimizer is a int"),
        (adamw, lambda model: StepLR(adamw(model), 1), "acts on another optimizer"),
        (adamw, lambda model: 3, "scheduler is a int"),
        (lambda model: "adamw", lambda model: ReduceLROnPlateau, "needs a metric"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_line(optimizer, scheduler, message):
    model = make_model("mlp")
    with pytest.raises(InputError, match=message) as error:
        snugfit.prepare(
            model,
            loss=cross_entropy,
            optimizer=optimizer(model),
            scheduler=scheduler and scheduler(model),
            device="cpu",
        )
    assert "\n" not in str(error.value)


def test_settings_beside_an_instance_have_no_effect():
    model = make_model("mlp")
    with pytest.warns(SnugfitWarning, match="lr has no effect"):
        snugfit.prepare(model, loss=cross_entropy, optimizer=adamw(model), device="cpu", lr=1.0)


def test_the_same_bytes_as_by_name():
    model = make_model("mlp", torch.float32)
    batch, given = make_batches("mlp", 8, 1, torch.float32)[0], {"loss": cross_entropy, "device": "cpu"}
    for fields in ({}, {"step_in_backward": True}):
        by_name = snugfit.estimate(model, batch, recipe=Recipe(**fields), **given)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SnugfitWarning)
            estimate = snugfit.estimate(
                model, batch, recipe=Recipe(**fields), optimizer=AdamW(model.parameters(), fused=True), **given
            )
        assert estimate.peak_allocated_bytes == by_name.peak_allocated_bytes
