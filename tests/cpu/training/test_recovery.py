"""A step that runs out of memory is undone and run again: parameters, state and messages, wherever memory ran out."""

import random
import warnings

import pytest
import torch
from failing_allocations import failing, nothing_to_collect  # noqa: F401 - a fixture for all tests
from small_models import cross_entropy, make_batches, make_model

import snugfit
from snugfit import Recipe, SnugfitWarning

STEPS = 4
SETTINGS = {
    "adamw-fused": {},
    "adamw-foreach": {"optimizer_impl": "foreach"},
    "adamw-for-loop": {"optimizer_impl": "for-loop"},
    "momentum-fused": {"optimizer": "sgd", "momentum": 0.9},
    "momentum-foreach": {"optimizer": "sgd", "momentum": 0.9, "optimizer_impl": "foreach"},
    "adafactor": {"optimizer": "adafactor"},
    "host": {"offload_optimizer": True},
    "no-decay": {"no_decay": True, "weight_decay": 0.1, "optimizer_impl": "foreach"},
    "clipped": {"clip_norm": 0.5},
    "checkpoint": {"checkpoint": "all"},
    "offload": {"offload_activations": "all"},
    "scaled": {"precision": "16-mixed"},
    "scaled-foreach": {"precision": "16-mixed", "optimizer_impl": "foreach"},
    "rounded": {"precision": "bf16-true", "stochastic_rounding": True},
    "rounded-momentum": {
        "precision": "bf16-true", "stochastic_rounding": True, "optimizer": "sgd", "momentum": 0.9,
    },
}  # fmt: skip
RECIPE_FIELDS = set(Recipe().to_mapping()) - {"optimizer"}


def trainer_of(name="mlp", dtype=torch.float64, fallbacks=None, **settings):
    recipe = Recipe(**{key: value for key, value in settings.items() if key in RECIPE_FIELDS})
    others = {key: value for key, value in settings.items() if key not in RECIPE_FIELDS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnugfitWarning)
        return snugfit.prepare(
            make_model(name, dtype), recipe, fallbacks=fallbacks, loss=cross_entropy, device="cpu", lr=0.01, **others
        )


def train(settings, faults=None, steps=STEPS):
    """Trains; faults: step -> (phase, number of the allocation that fails)."""
    faults = faults or {}
    dtype = torch.float64 if settings.get("precision", "fp32") == "fp32" else torch.float32
    trainer = trainer_of(dtype=dtype, **settings)
    for step, batch in enumerate(make_batches("mlp", 8, steps, dtype)):
        chosen, number = faults.get(step, (None, None))
        if step in faults:
            with failing(chosen, (number,)) as mode, warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                trainer.step(batch)
            assert mode.failed == 1 and len(said) <= 1
        else:
            trainer.step(batch)
    trainer.finish()
    return trainer


def allocations(settings, step):
    """How many allocations each phase of a step has."""
    dtype = torch.float64 if settings.get("precision", "fp32") == "fp32" else torch.float32
    counts = {}
    for name in ("data", "forward", "backward", "optimizer"):
        trainer = trainer_of(dtype=dtype, **settings)
        for number, batch in enumerate(make_batches("mlp", 8, step + 1, dtype)):
            with failing(name) as mode:
                trainer.step(batch)
            if number == step:
                counts[name] = mode.count
    return counts


def assert_same(one, other, tolerance=1e-9):
    states = [trainer.state_dict() for trainer in (one, other)]
    for name, want in states[1]["model"].items():
        torch.testing.assert_close(states[0]["model"][name], want, rtol=tolerance, atol=tolerance)
    assert states[0]["steps_done"] == states[1]["steps_done"]
    for position, want in states[1]["optimizer"]["state"].items():
        for name, value in want.items():
            got = states[0]["optimizer"]["state"][position][name]
            torch.testing.assert_close(got.to(value.dtype), value, rtol=tolerance, atol=tolerance)
    if states[1]["scaler"]:
        assert states[0]["scaler"] == states[1]["scaler"]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_fault_leaves_no_trace(name):
    """Three faults at random allocations of each of four phases, in a random step, one a run."""
    settings = SETTINGS[name]
    plain = train(settings)
    exact = settings.get("precision", "fp32") == "fp32"
    draw = random.Random(name)
    step = draw.choice((0, 1, 2))
    for phase, count in allocations(settings, step).items():
        for number in sorted(draw.sample(range(count), min(count, 3))):
            faulty = train(settings, {step: (phase, number)})
            assert_same(faulty, plain, 1e-9 if exact else 2e-2)
            if not exact and phase == "optimizer":  # the same pieces, so the same bits
                assert_same(faulty, plain, 0.0)


@pytest.mark.parametrize("name", ["adamw-foreach", "momentum-foreach", "host"])
def test_faults_in_ten_steps_of_one_run(name):
    settings, draw = SETTINGS[name], random.Random(name)
    steps = 14
    phases = ("forward", "backward", "optimizer")
    faults = {step: (draw.choice(phases), draw.randrange(3)) for step in draw.sample(range(steps), 10)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnugfitWarning)
        assert_same(train(settings, faults, steps), train(settings, steps=steps))
