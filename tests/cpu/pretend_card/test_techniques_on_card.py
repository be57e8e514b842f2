"""Every exact technique on a pretend card gives plain training's update, in whatever order its streams go.

Dropout draws other numbers on a card than on the CPU, so the model with dropout is held against plain training on a card
whose streams work at once.
"""

import math
import random

import pytest
import torch
from exact_recipes import EXACT, allowed, pairs
from schedules import asked_of_a_card, orders
from small_models import MODELS, cross_entropy, make_batches, make_model

import snugfit
from snugfit import Recipe
from snugfit.pretend_card.present import card_present
from snugfit.techniques.streams import CopyStream

SAMPLES, STEPS = 10, 3
STEPS_OF_ONE_STREAM = 2
"""The second step finds what the first has left; a third tells more only of memory that copies use again."""
ON_CARD = {name: fields for name, fields in EXACT.items() if name != "compile"}
"""Compiled code knows no device that is written in Python."""
HOST = {"offload_activations", "offload_checkpoints", "offload_optimizer"}
"""Techniques whose copies run beside the compute, in a stream of their own; all others have work in one stream only."""
TOO_SMALL = {"microbatch+offload_checkpoints"}
"""Four samples of a block's input are less than what is worth a copy."""
SEEDS = 6
"""Most of them show a wait that is left out (the second test), so six show it nearly always."""
MANY_SEEDS = 12


def _cases():
    """Each technique on all models, and each pair with copies beside the compute on one: all others have one order."""
    drawn = random.Random(0)
    for model in MODELS:
        for name, fields in ON_CARD.items():
            yield model, name, fields, drawn.randrange(1000)
    for number, (name, fields) in enumerate(pairs(ON_CARD)):
        if HOST & set(name.split("+")) and name not in TOO_SMALL:
            model = "tied" if number % 2 or "microbatch" in name else "cnn"
            yield model, name, fields, drawn.randrange(1000)


CASES = [case for case in _cases() if allowed(case[0], case[2], SAMPLES)]


def _train(model_name, fields, device, steps):
    model = make_model(model_name, torch.float64)
    trainer = snugfit.prepare(
        model, Recipe(**fields), loss=cross_entropy, optimizer="adamw", device=device, batch_size=SAMPLES
    )
    for number, batch in enumerate(make_batches(model_name, SAMPLES, steps, torch.float64)):
        torch.manual_seed(number)
        trainer.step(batch)
    trainer.finish()
    return {name: value.cpu() for name, value in model.state_dict().items()}


@pytest.fixture(scope="module")
def plain():
    known = {}

    def get(model, steps):
        if (model, steps) not in known and model == "vit":
            with card_present(None, eager=True) as card:
                known[model, steps] = _train(model, {}, card.personality.device, steps)
        elif (model, steps) not in known:
            known[model, steps] = _train(model, {}, "cpu", steps)
        return known[model, steps]

    return get


def _check(model, fields, seed, plain, several):
    """One run, and its queues carried out again: by several seeds where a second stream has work."""
    steps = STEPS if several else STEPS_OF_ONE_STREAM
    expected = plain(model, steps)
    with asked_of_a_card(seed) as (card, asked):
        trained = _train(model, fields, card.personality.device, steps)
    _agree(trained, expected)
    for streams in orders(asked.used, SEEDS):
        for value in trained.values():
            value.fill_(math.nan if value.is_floating_point() else -1)
        asked.again(streams)
        _agree(trained, expected)
    return asked.used


def _agree(trained, expected):
    for name, want in expected.items():
        error = (trained[name] - want).abs().max() / want.abs().max().clamp(min=1e-12)
        assert error <= 1e-9, f"{name}: {error:.2e}"  # a value that is not a number is not less either


@pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")
@pytest.mark.parametrize(
    ("model", "name", "fields", "seed"), CASES, ids=[f"{model}-{name}" for model, name, _, _ in CASES]
)
def test_matches_plain_training(model, name, fields, seed, plain):
    several = bool(HOST & set(name.split("+")))
    used = _check(model, fields, seed, plain, several)
    assert (len(used) > 1) == several, "a second stream has work where copies run beside"


@pytest.mark.parametrize("name", sorted(HOST))
def test_a_wait_that_is_left_out_is_seen(name, plain, monkeypatch):
    """What is carried out again is carried out in other orders, and not only once more."""
    for method in ("compute_waits_for", "host_waits_for"):
        monkeypatch.setattr(CopyStream, method, lambda *_: None)
    with asked_of_a_card(eager=True) as (card, asked):  # where each is done at once, nothing has to wait
        trained = _train("tied", EXACT[name], card.personality.device, STEPS)
    _agree(trained, plain("tied", STEPS))
    wrong = 0
    for streams in orders(asked.used, MANY_SEEDS):
        try:
            asked.again(streams)
            _agree(trained, plain("tied", STEPS))
        except AssertionError:
            wrong += 1
    assert wrong >= 9


def test_the_matrix_is_as_large_as_claimed():
    assert {name for model, name, _, _ in CASES if model == "mlp"} >= set(ON_CARD)
    assert sum("+" in name for _, name, _, _ in CASES) >= 25
