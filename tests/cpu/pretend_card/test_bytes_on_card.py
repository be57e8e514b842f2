"""A pretend card counts the bytes that were predicted, and ends at the operator at which a replay ends."""

import functools
import importlib
from pathlib import Path

import pytest
import torch
from exact_recipes import EXACT
from small_models import cross_entropy, make_batches, make_model

import snugfit
from snugfit import Recipe, SnugfitWarning
from snugfit.fake_device.personality import Personality
from snugfit.pretend_card.present import card_present
from snugfit.recording.replay import replay
from snugfit.simulator.given_training import simulate_training
from snugfit.training.course import Course
from snugfit.training.evaluation import task_of

SAMPLES = {"mlp": 2048, "cnn": 192, "vit": 768, "tied": 2048}
"""As many as make activations count beside the 8 MiB that the matrix library takes."""
HALF = {"precision": "bf16-mixed"}
MEMORY = {
    **{name: fields for name, fields in EXACT.items() if name != "compile"},
    "plain": {},
    "bf16_mixed": HALF,
    "bf16_true": {"precision": "bf16-true"},
    "fp16_mixed": {"precision": "16-mixed"},
    "muon": {"optimizer": "muon"},
    "bf16_checkpoints_on_the_host": {**HALF, "checkpoint": "all", "offload_activations": "checkpoints"},
    "bf16_on_the_host": {"precision": "bf16-true", "offload_optimizer": True, "step_in_backward": True},
}
PIECES = {
    "pieces_on_the_host": {**EXACT["microbatch"], **EXACT["offload_activations"]},
    "pieces_summed_in_fp32": {**EXACT["microbatch"], "precision": "bf16-true", "accumulate_dtype": "fp32"},
}
"""Recipes with microbatches, which models without batch statistics and masks can take."""
ALIKE = (("mlp", "tied"), ("cnn", "vit"))
"""Models of which a recipe is held on one: layers alone, and those with statistics or masks of a batch."""
EVERYWHERE = {("mlp", "plain"), ("vit", "bf16_mixed"), ("cnn", "offload_activations"), ("vit", "checkpoint_all")}
"""What is tried at every limit."""
CASES = [
    (model, name, fields)
    for models in ALIKE
    for number, (name, fields) in enumerate((MEMORY | PIECES).items())
    for model in models
    if (model == models[number % 2] or (model, name) in EVERYWHERE)
    and not ("microbatch_size" in fields and models == ALIKE[1])
]
LIMITS = (90, 80, 70, 60)


@pytest.fixture(scope="module")
def card_bytes():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).resolve().parents[3]))
        yield importlib.import_module("benchmarks.card_bytes")


def _held(model, fields):
    if "microbatch_size" in fields:  # of ten samples, in the recipes
        fields = fields | {"microbatch_size": fields["microbatch_size"] * SAMPLES[model] // 10}
    return Recipe(**fields)


def _settings(model, fields):
    return {
        "loss": cross_entropy, "batch_size": SAMPLES[model], "coupled_samples": False,
        **({} if "optimizer" in fields else {"optimizer": "adamw"}),
    }  # fmt: skip


def _batch(model):
    return make_batches(model, SAMPLES[model], 1, torch.float32)[0]


def _without_memory(model):
    with torch.device("meta"):
        return make_model(model, torch.float32)


@pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")
@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{name}-{model}" for model, name, _ in CASES])
def test_takes_the_predicted_bytes(number, card_bytes):
    """Allocated and reserved peaks are equal to the byte, and at a limit the same operator finds no memory."""
    model, name, fields = CASES[number]
    run = importlib.import_module("benchmarks.gpu.training_run").TrainingRun(
        build=functools.partial(make_model, model, torch.float32),
        batch=functools.partial(_batch, model),
        recipe=_held(model, fields),
        arguments=_settings(model, fields),
        evaluate=number % 2 == 0,
    )
    limits = LIMITS if (model, name) in EVERYWHERE else LIMITS[number % 4 :][:1]
    found = card_bytes.compared(run, _without_memory(model), limits)
    assert found["counted"] == found["predicted"]
    for limit in found["limits"]:
        assert limit["failed"] == limit["predicted"], limit


def test_as_many_configurations_as_are_claimed():
    assert len(CASES) >= 40 and {(model, name) for model, name, _ in CASES} >= EVERYWHERE
    assert all(sum(model == one for one, _, _ in CASES) >= 10 for model in SAMPLES)


@pytest.mark.parametrize("smaller", [{"checkpoint": "all"}, {"offload_activations": "all"}], ids=["computed", "moved"])
def test_after_recovery_the_bytes_are_those_of_the_recipe_that_it_took(smaller):
    """Up to the operator that fails they are those of the first one."""
    model, batch, settings = "mlp", _batch("mlp"), _settings("mlp", {})
    recipes = [Recipe(), Recipe(**smaller)]
    traces = [
        simulate_training(
            _without_memory(model), recipe, tuple(part.to("meta") for part in batch), personality=Personality(),
            evaluate=False, arguments=settings,
        ).trace
        for recipe in recipes
    ]  # fmt: skip
    most, least = (replay(trace).peak_reserved_bytes for trace in traces)
    assert least < most
    capacity = (most + least) // 2
    predicted = [replay(trace, capacity_bytes=capacity) for trace in traces]
    assert predicted[0].shortage is not None and predicted[1].shortage is None
    with card_present(capacity, seed=1) as card, pytest.warns(SnugfitWarning, match="step 1 ran out of memory"):
        trainer = snugfit.prepare(
            make_model(model, torch.float32),
            recipes[0],
            fallbacks=recipes[1:],
            device=card.personality.device,
            **settings,
        )
        Course(trainer, task_of(None)).train([batch, batch])
        trainer.finish()
        assert trainer.recipe == recipes[1]
        allocator = card.memory.allocator
        for name in ("peak_allocated_bytes", "peak_reserved_bytes"):
            assert getattr(allocator, name) == max(getattr(one, name) for one in predicted), name
