"""Every exact technique on a pretend card gives plain training's update, and takes the bytes that were predicted.

Dropout draws other numbers on a card than on the CPU, so the model with dropout is held against plain training on a card
whose streams work at once.
"""

import itertools
import random

import pytest
import torch
from exact_recipes import EXACT, allowed, pairs
from small_models import MODELS, cross_entropy, make_batches, make_model

import snugfit
from snugfit import Recipe
from snugfit.fake_device.personality import Personality
from snugfit.pretend_card.present import card_present
from snugfit.recording.replay import replay
from snugfit.simulator.session import simulate_training
from snugfit.training.course import Course
from snugfit.training.evaluation import task_of

SAMPLES, STEPS = 10, 3
ON_CARD = {name: fields for name, fields in EXACT.items() if name != "compile"}
"""Compiled code knows no device that is written in Python."""
HOST = ("offload_activations", "offload_checkpoints", "offload_optimizer")
"""Techniques whose copies run beside the compute."""
SEEDS = 20


def _cases():
    drawn = random.Random(0)
    for model in MODELS:
        for name, fields in ON_CARD.items():
            yield model, name, fields, drawn.randrange(1000)
    for name, fields in pairs(ON_CARD):
        yield drawn.choice(list(MODELS)), name, fields, drawn.randrange(1000)


CASES = [case for case in _cases() if allowed(case[0], case[2], SAMPLES)]


def _train(model_name, fields, device, steps=STEPS):
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

    def get(model):
        if model not in known and model == "vit":
            with card_present(None, eager=True) as card:
                known[model] = _train(model, {}, card.personality.device)
        elif model not in known:
            known[model] = _train(model, {}, "cpu")
        return known[model]

    return get


def _check(model, fields, seed, plain):
    expected = plain(model)
    with card_present(None, seed=seed) as card:
        trained = _train(model, fields, card.personality.device)
    for name, want in expected.items():
        error = (trained[name] - want).abs().max() / want.abs().max().clamp(min=1e-12)
        assert error <= 1e-9, f"{name}: {error:.2e}"  # a value that is not a number is not less either


@pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")
@pytest.mark.parametrize(
    ("model", "fields", "seed"), [(m, f, s) for m, _, f, s in CASES], ids=[f"{m}-{n}" for m, n, _, _ in CASES]
)
def test_matches_plain_training(model, fields, seed, plain):
    _check(model, fields, seed, plain)


@pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")
@pytest.mark.parametrize("name", HOST)
def test_copies_beside_the_compute_are_waited_for(name, plain):
    for seed in range(SEEDS):
        _check("tied", EXACT[name], seed, plain)


def test_the_matrix_is_as_large_as_claimed():
    assert {name for model, name, _, _ in CASES if model == "mlp"} >= set(ON_CARD)
    assert sum("+" in name for _, name, _, _ in CASES) >= 40


MEMORY = {
    **{name: {**fields} for name, fields in ON_CARD.items()},
    "plain": {},
    "bf16_mixed": {"precision": "bf16-mixed"},
    "bf16_true": {"precision": "bf16-true"},
    "fp16_mixed": {"precision": "16-mixed"},
    "muon": {"optimizer": "muon"},
    "bf16_checkpoints_on_the_host": {
        "precision": "bf16-mixed", "checkpoint": "all", "offload_activations": "checkpoints"
    },
}  # fmt: skip


def _settings(fields):
    return {
        "loss": cross_entropy, "batch_size": SAMPLES, "coupled_samples": False,
        **({} if "optimizer" in fields else {"optimizer": "adamw"}),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")
@pytest.mark.parametrize("model", ["mlp", "cnn", "vit"])
@pytest.mark.parametrize("fields", MEMORY.values(), ids=MEMORY)
def test_takes_the_predicted_bytes(model, fields):
    """Allocated and reserved peaks are equal to the byte, and at a limit the same operator finds no memory."""
    if "microbatch_size" in fields and model in ("cnn", "vit"):
        pytest.skip("batch statistics and dropout masks differ under microbatches, which prepare warns of")
    batch = make_batches(model, SAMPLES, 1, torch.float32)[0]
    meta = tuple(part.to("meta") for part in batch)
    recipe, settings = Recipe(**fields), _settings(fields)
    trace = simulate_training(
        make_model(model, torch.float32).to("meta"), recipe, meta,
        personality=Personality(), steps=STEPS, evaluate=False, arguments=settings,
    ).trace  # fmt: skip
    predicted = replay(trace)

    def train(capacity_bytes):
        with card_present(capacity_bytes, seed=1) as card:
            trainer = snugfit.prepare(
                make_model(model, torch.float32), recipe, device=card.personality.device, **settings
            )
            Course(trainer, task_of(None)).train(itertools.repeat(batch, STEPS))
            trainer.finish()
            return card.memory.allocator

    allocator = train(None)
    assert allocator.peak_allocated_bytes == predicted.peak_allocated_bytes
    assert allocator.peak_reserved_bytes == predicted.peak_reserved_bytes
