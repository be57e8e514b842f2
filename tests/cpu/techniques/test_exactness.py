"""Every exact technique, alone and in all pairs that the recipe allows, gives the update of plain training.

Parameters after three AdamW steps in float64 agree to 1e-9, float32 gradients of one step to 1e-5 of the global gradient
norm. Models with batch norm or dropout are held without microbatches, which change statistics and masks: their fidelity
says `different`, and that is tested too.
"""

from __future__ import annotations

import pytest
import torch
from exact_recipes import EXACT, allowed, pairs
from small_models import MODELS, cross_entropy, make_batches, make_model

import snugfit
from snugfit import Recipe

SAMPLES, STEPS = 10, 3

BESIDE_THE_MODEL = {"optimizer_impl", "offload_optimizer", "step_in_backward"}
"""Fields that change nothing in what `compile` compiles."""
WITH_ATTENTION = {"vit"}


def _compiled(model, fields):
    """What `compile` compiles, the same for cases that can share it; None where it does nothing."""
    if "compile" not in fields:
        return None
    beside = BESIDE_THE_MODEL if model in WITH_ATTENTION else BESIDE_THE_MODEL | {"attention"}
    return model, *sorted((name, value) for name, value in fields.items() if name not in beside)


def _is_compiled_anew(model, fields):
    """Whether a pair changes what is compiled, which takes seconds."""
    return _compiled(model, fields) not in (None, _compiled(model, EXACT["compile"]))


def _cases():
    """Each technique on all models, and each pair on two that differ, or on one where that compiles anew."""
    for name, fields in EXACT.items():
        yield from ((model, name, fields) for model in MODELS if allowed(model, fields, SAMPLES))
    for number, (name, fields) in enumerate(pairs()):
        models = [model for model in (("mlp", "vit"), ("tied", "cnn"))[number % 2] if allowed(model, fields, SAMPLES)]
        anew = any(_is_compiled_anew(model, fields) for model in models)
        yield from ((model, name, fields) for model in (models[:1] if anew else models))


CASES = sorted(_cases(), key=lambda case: (list(MODELS).index(case[0]), str(_compiled(case[0], case[2]) or "")))


@pytest.fixture(scope="module")
def compile_once():
    """Drops what was compiled before, where a case compiles something else: most of the time of a compiled case."""
    last = None

    def begin(model, fields):
        nonlocal last
        wanted = _compiled(model, fields)
        if wanted is not None and wanted != last:
            torch._dynamo.reset()
            last = wanted

    return begin


def _train(model_name: str, recipe: Recipe, dtype: torch.dtype, steps: int, optimizer="adamw"):
    model = make_model(model_name, dtype)
    gradients = {}
    for name, weight in model.named_parameters():
        weight.register_post_accumulate_grad_hook(
            lambda weight, name=name: gradients.__setitem__(name, weight.grad.detach().clone())
        )
    trainer = snugfit.prepare(model, recipe, loss=cross_entropy, optimizer=optimizer, device="cpu", batch_size=SAMPLES)
    for number, batch in enumerate(make_batches(model_name, SAMPLES, steps, dtype)):
        torch.manual_seed(number)
        trainer.step(batch)
    trainer.finish()
    return model, gradients


def _plain(model_name: str, dtype: torch.dtype, steps: int):
    """Training as anyone would write it, without snugfit."""
    model = make_model(model_name, dtype)
    optimizer = torch.optim.AdamW(model.parameters())
    gradients = {}
    for number, batch in enumerate(make_batches(model_name, SAMPLES, steps, dtype)):
        torch.manual_seed(number)
        cross_entropy(model(batch[0]), batch).backward()
        gradients = {name: weight.grad.clone() for name, weight in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
    return model, gradients


@pytest.fixture(scope="module")
def plain():
    cache = {}

    def get(*key):
        if key not in cache:
            cache[key] = _plain(*key)
        return cache[key]

    return get


@pytest.mark.filterwarnings("ignore::snugfit.errors.SnugfitWarning")  # "no effect on this model" is right here
@pytest.mark.parametrize(("model", "name", "fields"), CASES, ids=["-".join(case[:2]) for case in CASES])
def test_matches_plain_training(model, name, fields, plain, compile_once):
    compile_once(model, fields)
    recipe = Recipe(**fields)
    trained, _ = _train(model, recipe, torch.float64, STEPS)
    expected, _ = plain(model, torch.float64, STEPS)
    for (key, got), want in zip(trained.state_dict().items(), expected.state_dict().values(), strict=True):
        error = (got - want).abs().max() / want.abs().max().clamp(min=1e-12)
        assert error <= 1e-9, f"{key}: {error:.2e}"
    if name not in EXACT:
        return  # a pair rounds where its parts do

    _, gradients = _train(model, recipe, torch.float32, 1)
    _, wanted = plain(model, torch.float32, 1)
    norm = torch.stack([gradient.norm() for gradient in wanted.values()]).norm()
    for key, want in wanted.items():
        assert (gradients[key] - want).norm() <= 1e-5 * norm, key


@pytest.mark.parametrize("model", ["cnn", "vit"])
def test_microbatches_are_not_called_exact_where_they_are_not(model):
    trainer = snugfit.prepare(
        make_model(model), Recipe(microbatch_size=4), loss=cross_entropy, device="cpu", batch_size=SAMPLES
    )
    assert trainer.fidelity.level == "different"
    assert list(trainer.fidelity.reasons) == ["microbatch_size"]


def test_the_matrix_is_as_large_as_claimed():
    """At least 75 pairs, half of them on models with nothing in their way: no rule of the recipe can empty the test."""
    assert len({name for _, name, _ in CASES if "+" in name}) >= 75
    assert all(sum(one == model and "+" in name for one, name, _ in CASES) >= 30 for model in MODELS)
    assert all({name for one, name, _ in CASES if one == model} >= set(EXACT) for model in ("mlp", "tied"))
